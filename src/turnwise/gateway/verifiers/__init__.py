"""Environments of the library verifiers, trained through the gateway; the library runs in an interpreter of its own."""

from turnwise.gateway.verifiers.env import VerifiersEnv

__all__ = ["VerifiersEnv"]
