"""What an assistant may ask over the Model Context Protocol: tools that read and propose, and none that changes."""
