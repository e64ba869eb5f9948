"""Mistakes of phase 1 about the end of a request: end tokens, limits, stop strings."""

import dataclasses

from minfer.core.stopping import StopChecker
from minfer.phase1 import Engine
from tests.mutants import probes
from tests.mutants.planting import Mutants

MUTANTS = Mutants(phase=1)
plant = MUTANTS.plant

EOS_AT_3 = {"answer": (5, 6, 2), "ignore_eos": False}


class ChangedSequences(Engine):
    """Phase 1 whose sequences are `change`d when they are made."""

    def sequences(self, *prompts, **named):
        made = super().sequences(*prompts, **named)
        for sequence in made:
            self.change(sequence)
        return made


@plant("P1-08", probes.answers(**EOS_AT_3))
class NoEndToken(ChangedSequences):
    def change(self, sequence):
        sequence.end_ids = ()


@plant("P1-08", probes.answers(**EOS_AT_3, max_tokens=2))
class OneTokenTooMany(ChangedSequences):
    def change(self, sequence):
        if sequence.params.max_tokens:
            sequence.params = dataclasses.replace(sequence.params, max_tokens=sequence.params.max_tokens + 1)


@plant("P1-08", probes.answers(**EOS_AT_3, max_tokens=2))
class OneTokenTooFew(ChangedSequences):
    def change(self, sequence):
        if (sequence.params.max_tokens or 0) > 1:
            sequence.params = dataclasses.replace(sequence.params, max_tokens=sequence.params.max_tokens - 1)


@plant("P1-08", probes.answers(**EOS_AT_3))
class EndTokenInText(Engine):
    def commit(self, sequences, token_ids):
        super().commit(sequences, token_ids)
        for sequence in sequences:
            if sequence.finished and sequence.token_ids[-1] in sequence.end_ids and self.tokenizer:
                sequence.text += self.tokenizer.decode(sequence.token_ids[-1:])


@plant("P1-08", probes.answers(answer=(2, 5, 6), ignore_eos=False))
class FirstTokenNeverEnds(ChangedSequences):
    def change(self, sequence):
        sequence.hidden_ends, sequence.end_ids = sequence.end_ids, ()

    def commit(self, sequences, token_ids):
        super().commit(sequences, token_ids)
        for sequence in sequences:
            sequence.end_ids = sequence.hidden_ends


@plant("P1-08", probes.answers(answer=(5, 6, 2), ignore_eos=False, max_tokens=3))
class LengthBeforeStop(Engine):
    def commit(self, sequences, token_ids):
        super().commit(sequences, token_ids)
        for sequence in sequences:
            if sequence.finished and len(sequence.token_ids) >= sequence.max_length:
                sequence.finish_reason, sequence.stop_reason = type(sequence.finish_reason).LENGTH, None


@plant("P1-14", lambda cls, lab: cls(lab.scripted(1, [5, 6], eos_token_id=[6, 8]), None).sequences([[9]])[0].end_ids)
class OneEndTokenOnly(ChangedSequences):
    def change(self, sequence):
        sequence.end_ids = sequence.end_ids[-1:]


@plant("P1-15", probes.answers(answer=(2, 2, 2), ignore_eos=False, min_tokens=2))
class MinTokensForgotten(ChangedSequences):
    def change(self, sequence):
        sequence.params = dataclasses.replace(sequence.params, min_tokens=0)


STOP = {"answer": (5, 6, 7), "pieces": {5: b"one t", 6: b"wo thr", 7: b"ee"}, "stop": ["two"]}


class WithinOnePiece(StopChecker):
    def push(self, text, may_stop=True):
        for stop in self._stop:
            if may_stop and stop in text:
                return text[: text.index(stop)], stop
        return text, None


class Kept(StopChecker):
    def push(self, text, may_stop=True):
        safe, matched = super().push(text, may_stop)
        return (safe, None) if matched is None else (safe + matched, matched)


class NotHeldBack(StopChecker):
    """Gives out everything at once, and cuts when it is too late for a stream."""

    def push(self, text, may_stop=True):
        _, matched = super().push(text, may_stop)
        return text, matched


@plant("P1-16", probes.answers(**STOP))
class StopStringsWithinTokensOnly(ChangedSequences):
    def change(self, sequence):
        sequence._stops = WithinOnePiece(sequence.params.stop)


@plant("P1-16", probes.answers(**STOP))
class StopStringKept(ChangedSequences):
    def change(self, sequence):
        sequence._stops = Kept(sequence.params.stop)


@plant("P1-16", probes.pieces((5, 6, 7), STOP["pieces"], stop=["two"]))
class HalfStopStringStreamed(ChangedSequences):
    def change(self, sequence):
        sequence._stops = NotHeldBack(sequence.params.stop)
