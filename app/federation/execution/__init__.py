"""How clients are trained on a device: tasks, worker threads, vectorised blocks, processes."""
