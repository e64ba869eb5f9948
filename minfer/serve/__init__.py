"""An HTTP API in front of any engine that schedules requests (phase 5 on).

    client -> middleware (key, body size, log) -> app -> Admission -> Call -> EngineThread -> Attendant -> engine.step()
                                                        <- pieces, one call into the event loop a step <-

Two threads matter. The event loop speaks HTTP and never waits for a step; the engine's thread steps and never waits for
a client. What passes between them is a `Call`: sequences in one direction, `Delta`s in the other.
"""
