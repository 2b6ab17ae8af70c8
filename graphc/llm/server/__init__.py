"""An HTTP server with OpenAI's interface over one engine."""
