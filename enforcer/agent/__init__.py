"""The node's side of the enforcer: live framebuffer limits, pause and resume, and a watch over framebuffer."""
