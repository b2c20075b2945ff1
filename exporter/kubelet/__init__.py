"""What the kubelet handed to whom, asked over its pod-resources socket."""
