"""OpenVINO: compiled models and their executed nodes. Everything here is specific to OpenVINO."""
