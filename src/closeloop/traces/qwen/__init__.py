"""What Qwen Code's files hold beside the chat itself."""
