// Generated sources include this header; device.h declares everything.
