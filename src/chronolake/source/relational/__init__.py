"""What relational databases as sources have in common, whatever their logs look like."""
