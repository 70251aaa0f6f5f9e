"""What the fuzzer needs: intact subjects, ways to damage them, and a process that a damaged one cannot hurt."""
