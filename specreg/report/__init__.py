"""What people read: progress while a run lasts, tables when it ends."""
