"""What one shared gradient gives away: exposure before it leaves, reconstruction from it, and defences."""
