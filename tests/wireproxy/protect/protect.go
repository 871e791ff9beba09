// Package protect stands for the one of this name, which does something on OpenBSD only.
package protect

// Pledge does nothing.
func Pledge(string) error { return nil }

// Unveil does nothing.
func Unveil(string, string) error { return nil }

// UnveilBlock does nothing.
func UnveilBlock() error { return nil }
