"""Typed configuration. Import from the modules: `rlvr.config.compose.load_config`, `rlvr.config.schema.Config`."""
