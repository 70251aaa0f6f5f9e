"""Speed of language models: prompts and steps from bricks, and the loop of the model beside them."""
