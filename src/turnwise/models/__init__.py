"""Models: loading and saving, LoRA adapters, the built-in small model, the critic, the reference policy."""
