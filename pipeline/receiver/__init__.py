"""Takes remote-write requests from the network and puts them on the bus."""
