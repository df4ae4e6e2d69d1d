"""Language models: what a fine-tuned model or an adapter gives away of its texts, exactly, with a control."""
