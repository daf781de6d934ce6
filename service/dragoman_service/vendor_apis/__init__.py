"""APIs of other translation services: DeepL, Google, Azure and LibreTranslate."""
