"""Why are the numbers wrong? By facts of the run, or by trying something, while there is time."""
