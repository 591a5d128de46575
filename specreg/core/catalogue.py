"""What each reason of a verdict or of an invalid measurement says, by its code.

Whoever makes a reason gives the facts that stand in braces here. The page of outcomes in
docs/reference is generated from this table.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from specreg.core.families import ALL, COUNTED, TIMED, Family


@dataclass(frozen=True, slots=True)
class Entry:
    """What one kind of reason says.

    Attributes:
        sentence: what is the matter, as a clause without a full stop, with facts in braces.
        remedy: what to do about it, with facts in braces; empty if there is nothing to do.
        meaning: what else a person needs who looks it up, as Markdown; empty if the sentence and
            the remedy say it all.
        spoils: the families whose figures mean nothing in a measurement with this reason.
    """

    sentence: str
    remedy: str = ""
    meaning: str = ""
    spoils: AbstractSet[Family] = ALL


_TRY_VERSION = "try the version of the engine that specreg is tested with"
_SEE_LOG = "look at the server's log"
_POWER: AbstractSet[Family] = frozenset({Family.POWER})
_SPEEDUP: AbstractSet[Family] = frozenset({Family.SPEEDUP})
_ITSELF: AbstractSet[Family] = frozenset()

INVALID: Mapping[str, Entry] = {
    # These concern how acceptance is counted.
    "ACCEPTANCE_MISSING": Entry(
        "{sources} report no steps",
        "check the server's version, and switch its statistics on",
        "The server's statistics are off, perhaps by `engine_args`.",
        COUNTED,
    ),
    "ACCEPTANCE_PARTIAL": Entry(
        "prompt '{prompt}': the server sent no acceptance, but for others it did",
        _SEE_LOG,
        "A vLLM before 0.32 loses the record of an answer if its front end falls behind: give the"
        " server its own cores, or use 0.32.",
        COUNTED,
    ),
    "CHUNKS_MERGED": Entry(
        "prompt '{prompt}': the first chunk holds {first_tokens} tokens and a later one"
        " {later_tokens}, but the prefill emits one token, and a step emits {step_tokens} at most:"
        " the server merged chunks, so they don't show its steps",
        "lower the load",
        "The server reports nothing but chunks. The load or a proxy merges them: lower"
        " `concurrency`, or attach without the proxy.",
        COUNTED,
    ),
    "COUNTS_DISAGREE": Entry(
        "our requests: {ours}; the server's counters: {counted}",
        "if a balancer spreads the requests over replicas, name the counters of all of them with"
        f" --specreg-metrics-url; else {_TRY_VERSION}",
        "The counters rose by less than our requests account for. If several servers share one"
        " address, attach to one of them.",
        COUNTED,
    ),
    "STEPS_REPEATED": Entry(
        "our requests: {ours}; the server's counters: {counted}; the server counts each of our"
        " steps {times} times",
        _TRY_VERSION,
        "The fault is in the server.",
        COUNTED,
    ),
    "STEPS_UNREPORTED": Entry(
        "our requests: {ours}; the server's counters: {counted}; only our requests ended, so some"
        " answers lack steps that the server took",
        _SEE_LOG,
        "The fault is in the server.",
        COUNTED,
    ),
    "STEPS_UNDELIVERED": Entry(
        "the server counted steps that emit {emitted_tokens} tokens, and {later_tokens} came after"
        " the first ones: it counts each step several times, or those of another client",
        f"keep the server for this run alone, or {_TRY_VERSION}",
        "",
        COUNTED,
    ),
    "HISTOGRAM_DISAGREES": Entry(
        "an answer has the histogram {histogram}, but {accepted} accepted and {proposed} proposed"
        " drafts",
        _TRY_VERSION,
        "",
        COUNTED,
    ),
    "COUNTS_INCONSISTENT": Entry(
        "{subject}: steps, accepted, drafted = {counts} and accepted by position {positions}"
        " contradict one another",
        _TRY_VERSION,
        "More tokens were accepted than drafted, for example.",
        COUNTED,
    ),
    "LENGTH_IMPOSSIBLE": Entry(
        "{subject}: steps, accepted, drafted = {counts} and accepted by position {positions};"
        " {steps} steps accept {most} at most",
        _TRY_VERSION,
        "The engine counts its own token among the drafts, or loses steps.",
        COUNTED,
    ),
    "METRICS_MISSING": Entry(
        "the server's counters can't be read, {error}",
        _SEE_LOG,
        "Statistics are off, or a proxy hides the page (`curl http://HOST:PORT/metrics`).",
        COUNTED,
    ),
    "COUNTER_MISSING": Entry(
        "looked for {missing}; {path} has {there}",
        "{advice}",
        "Statistics are off, or a version renamed the counter.",
        COUNTED,
    ),
    "METRICS_UNREADABLE": Entry(
        "{fault}",
        "look at {path} in a browser",
        "A count is impossible, the page isn't in Prometheus' format, or it is far too long.",
        COUNTED,
    ),
    # These concern the machine and the client, which affect everything that is timed.
    "CLIENT_BEHIND": Entry(
        "the client {action} {late_ms:.1f} ms late or later half of the time, more than the"
        " {limit_ms:.1f} ms that the figures bear",
        "raise client_processes in the tier, or give the client a core of its own",
        "The client sent half of the requests too late, or read half of the answers too late. End"
        " other programs.",
        TIMED,
    ),
    "ANSWERS_AT_ONCE": Entry(
        "half of the answers came at once, their chunks {apart_ms:.3f} ms apart or less, so the"
        " client or the server's front end was kept from running",
        "end what else runs on their cores",
        "",
        TIMED,
    ),
    "CLOCK_LOW": Entry(
        "{device} ran at {clock_mhz:.0f} MHz, it was recorded at {recorded_mhz:.0f}",
        "reset its clocks (nvidia-smi -rgc or amd-smi reset --clocks), cool it, or find out what"
        " limits its power; if the clock is to stay low, remove the baseline first",
        "The median clock was below 95 % of the recorded one. The clocks are locked"
        " (`nvidia-smi -q -d CLOCK`; undo with `sudo nvidia-smi -rgc`), the power limit was lowered"
        " (`nvidia-smi -q -d POWER`), or the GPU is hot. If the clock is to stay low,"
        " `git rm baselines/MACHINE/CASE.json` and record again.",
        TIMED,
    ),
    "DEVICE_SHARED": Entry(
        "{device}: used by {processes} while it was measured",
        "measure again when it is free",
        "End the other process, or choose another GPU with `CUDA_VISIBLE_DEVICES`. In a container,"
        " use the host's process numbers (`--pid=host`).",
        TIMED,
    ),
    "THROTTLED": Entry(
        "{device} was held back in {share_frac:.0%} of the samples: {causes}",
        "cool it, or give it more power",
        "Heat, a hardware slowdown or a power brake held a GPU back. A power cap doesn't count.",
        TIMED,
    ),
    # These concern a part of what is timed. A slower machine slows the control as well, so the
    # speedup stays valid.
    "MACHINE_MOVED": Entry(
        "{finding}",
        "quieten the machine and run again",
        "All cases of the machine, or the control of a case, became slower together, by more than"
        " is tolerated and than the machine wanders. If the engine's version isn't that of the last"
        " good night, the run compares the two versions, and the reason says whether it is the"
        " machine or the engine (`ENGINE_SLOWER`, which is REGRESSED). It doesn't compare them for"
        " a shard, an attached server, an engine that you installed, `--specreg-history=none`, or"
        " launches so slow that a gate would take over 15 minutes. In these cases,"
        " compare them with a [gate](../how-to/upgrade-an-engine.md). In a gate, `MACHINE_MOVED`"
        " means that side A differs from itself as much as from B.",
        TIMED - _SPEEDUP,
    ),
    "RUNNERS_DIFFER": Entry(
        "the server of '{case}' has model runner {runner}, and its control {control_runner}, so a"
        " speedup would include their difference",
        'set model_runner = "{runner}" in the tier for both',
        "",
        _SPEEDUP,
    ),
    "POWER_INVALID": Entry(
        "{fault}",
        "",
        "A request failed, or the sampler ended or missed more than 10 % of its samples, as happens"
        " on a busy machine. Or the GPU was lost, or its sensor read a power that it can't draw, or"
        " its energy counter stood still, jumped, went back or differs by more than 3 % from"
        " power × time: look at `nvidia-smi` and the driver.",
        _POWER,
    ),
    # These concern the server, its traffic and its answers.
    "FOREIGN_TRAFFIC": Entry(
        "our requests: {ours}; the server's counters: {counted}",
        "another client is using the server; keep the server for this run alone",
        "The server did more than our requests account for. A monitor that asks for completions is"
        " a client too. Series of several ranks of tensor parallelism are no reason: if each rank"
        " counts all steps, they are counted once.",
    ),
    "COUNTERS_FELL": Entry("{changes}: the server was restarted meanwhile", _SEE_LOG),
    "SPEC_DISABLED": Entry(
        "speculation is configured, yet steps, accepted, drafted = {counts}",
        "look in the server's log for the reason why the drafter is off",
        "The engine switched it off and logged that (`grep -i specul`), `engine_args` override it,"
        " an attached server was started without it, or an n-gram drafter found nothing to repeat"
        " in these prompts.",
    ),
    "CHUNKS_OF_ONE": Entry(
        "no chunk holds more than one token, and this server reports nothing but chunks: the"
        " drafter is off, as the server's log would say, or a front end sends each token in a chunk"
        " of its own",
        "attach to the engine itself",
    ),
    "DRAFTS_UNCOUNTED": Entry(
        "the server counts tokens, and has no speculation counters: it doesn't speculate, or its"
        " version has other names for them than {names}…; /metrics has {similar}",
        _SEE_LOG,
    ),
    "SETTINGS_DIFFER": Entry(
        "the server drafts up to {drafted} tokens per step, up to {accepted} of them accepted; the"
        " case asks for {expected}, up to {expected_accepted} of them accepted",
        "look at the engine's arguments",
        "The attached server has another number, `engine_args` override it, or the head can't draft"
        " more.",
    ),
    "NOT_PINNED": Entry(
        "the acceptance length is {length_tokens:.3f}, but the case pins it to {pinned_tokens:g} ±"
        " {allowed_tokens:.2g}, which the engine doesn't do",
        'use another version or case, or acceptance = "real"',
        'The case has `acceptance = "pinned"`, or the gate `--pin`.',
    ),
    "TOKENS_IMPOSSIBLE": Entry(
        "{subject}: {tokens} tokens were delivered, but the prefill and {steps} steps emit"
        " {most_tokens} at most, of which {accepted} are accepted drafts; the server counts fewer"
        " drafts than it accepts, or steps without a draft came in merged chunks",
        f"lower the load, or {_TRY_VERSION}",
    ),
    "USAGE_MISSING": Entry(
        "prompt '{prompt}': the server sent no usage",
        _TRY_VERSION,
        "The answer ended without its number of tokens. A proxy or server ignores"
        " `stream_options`.",
    ),
    "USAGE_LATE": Entry(
        "text came before any of its tokens was counted, so the server counts tokens only at the"
        " end, and neither times nor steps can be measured",
        "use a version of the engine that counts with each chunk",
    ),
    "TOKENS_DISAGREE": Entry(
        "prompt '{prompt}': its chunks carried {tokens} tokens, the server counted {usage_tokens}",
        _TRY_VERSION,
        "A proxy may drop chunks.",
    ),
    "TOKEN_IDS_MISSING": Entry(
        "prompt '{prompt}': the server counted {usage_tokens} tokens, and its chunks carried none"
        " of their ids, which a gateway strips",
        "attach to the engine itself",
    ),
    "REQUEST_FAILED": Entry(
        "{failed} of {requests} requests failed, the first on prompt '{prompt}': {error}",
        _SEE_LOG,
        "After a timeout, raise `request_timeout_s`, or look for a server that swaps. If a stream"
        " ended without a finish reason, the server or a proxy broke it off. Otherwise the first"
        " failure has one of the next codes.",
    ),
    "NOTHING_ANSWERED": Entry("the server answered nothing", _SEE_LOG),
    "HTTP_ERROR": Entry(
        "{answer}",
        _SEE_LOG,
        "The status isn't 200, and the reason quotes the server. For 429, it limits requests. For"
        " 400 in a check, it takes no token ids.",
    ),
    "SERVER_ERROR": Entry("the server says '{words}'"),
    "EVENT_UNREADABLE": Entry(
        "{fault}",
        "",
        "An event of the stream isn't JSON of this engine. The server isn't the engine of the case"
        " (`--engine`), or a proxy sent a page. Or the stream broke off after a comment, which the"
        " reason quotes.",
    ),
    "STREAM_UNRECOGNISED": Entry(
        "{fault}; events must hold either all text and token ids so far or only the new ones",
        "use a version of the engine that specreg is tested with",
    ),
    "TEXT_REPEATED": Entry(
        "each event of the stream repeats the text before it, and specreg expects only new text",
        "switch that off, or use a version of the engine that sends only new text",
    ),
    "ANSWER_UNREADABLE": Entry(
        "{fault}", _SEE_LOG, "The answer of a check isn't JSON of this engine."
    ),
    "ANSWER_ENDLESS": Entry(
        "{amount} in an answer that was limited to {cap_tokens} tokens",
        "",
        "The server ignores `max_tokens`.",
    ),
    "HUNG": Entry(
        "no token came for {silent_s:g} s",
        _SEE_LOG,
        "No token came on any stream for 60 s, or no answer to a check for 10 min. The server was"
        " ended, and the next case got a fresh one. Read the end of its log; a machine that swaps"
        " looks the same.",
    ),
    "CLIENT_DIED": Entry(
        "a client process ended with status {status}; see why in its last lines:\n{lines}",
        "",
        "Memory ran out, as a rule: lower `client_processes`.",
    ),
    # These concern one metric or one check.
    "METRIC_ABSENT": Entry(
        "no value, because no answer had two chunks or more, or the control has no value",
        "raise output_cap_tokens",
        "Each answer came in one chunk, for example. If it must, name the metric under `shown` in"
        " the tier.",
        _ITSELF,
    ),
    "ACCEPTANCE_ABSENT": Entry(
        "no value, because this source doesn't report it",
        "add it to 'shown' in the tier",
        "",
        _ITSELF,
    ),
    "POWER_ABSENT": Entry(
        "no value, because no device's counter moved",
        "look at power/ in the run's folder",
        "",
        _ITSELF,
    ),
    "CONTROL_UNSTEADY": Entry(
        "the server whose answers are the reference gives other answers at another batch size:"
        " their tokens are {bound_nats:.2f} nats apart, and rounding explains {most_nats:g} nats at"
        " most",
        "use another version, or set VLLM_BATCH_INVARIANT in engine_env for vLLM on a GPU",
        "",
        _ITSELF,
    ),
    "NOTHING_DRAFTED": Entry(
        "neither the engine nor its models drafted",
        "replay prompts that give drafts",
        "The oracle proves nothing. An n-gram drafter needs prompts that repeat themselves.",
        _ITSELF,
    ),
    "CONTEXT_FULL": Entry(
        "'{case}': a prompt and its answer have {tokens} tokens and the last step drafts {drafts}"
        " more, but the context has {context_tokens}",
        "lower output_cap_tokens or raise max_model_len_tokens in the tier",
        "",
        _ITSELF,
    ),
    "FIGURE_IMPOSSIBLE": Entry(
        "{figure} is {value}, needed a positive and finite number",
        "",
        "The file of a baseline holds an impossible value. The run stops, as a rule.",
        _ITSELF,
    ),
}
"""Why the figures of a measurement, or the answers to a check, mean nothing."""

REGRESSED: Mapping[str, Entry] = {
    "LASTING": Entry(
        "{change_frac:+.1%} since the night of {since}, over {nights}{changes}",
        "",
        "Such a loss may be smaller than the tolerance. It stays red until it is mended or recorded"
        " with a `--reason`.",
    ),
    "LENGTHS_CHANGED": Entry(
        "{changed} of {prompts} prompts gave answers of another length ({examples}); {effect}",
        "read the answers to these prompts",
    ),
    "ENGINE_SLOWER": Entry(
        "{cause}: {measured}",
        "to find the release, type {bisect}",
        "A gate in the same hour measured the engine's earlier version.",
    ),
    "ENGINE_ALONE_SLOWER": Entry(
        "all cases of {engine} together {change}, and those of the other engines didn't"
    ),
    "where_lost": Entry("{places}", "", "The categories and the drafts that lost acceptance."),
    "loss_confirmed": Entry("seen on two launches, {first}"),
    "answers_compared": Entry("{differences}", "", "How the answers of two servers differ."),
    "draws_differ": Entry(
        "{draws} answers drawn to each of {prompts} prompts begin differently with speculation than"
        " without, which has a probability of {chance:.2g} by chance: the verifier draws from"
        " another distribution than the target's"
    ),
    "steps_differ": Entry(
        "{differences}",
        "",
        "How the steps of the engine differ from those that its text and models give.",
    ),
    "soak_drifts": Entry(
        "worse by {loss_frac:.1%} in an hour", "look at the server's log for what grows or fills"
    ),
}
"""Why something is REGRESSED or WRONG."""

UNDECIDED: Mapping[str, Entry] = {
    "undecided": Entry(
        "this run detects {detects_frac:.1%} with {amount}, and the tolerance is"
        " {tolerance_frac:.1%}",
        "{remedy}",
        "If the reason says how many nights would tell, the next nights decide. To know of a"
        " suspected change today, compare two versions with a"
        " [gate](../how-to/upgrade-an-engine.md). If it says that no number of nights would, this"
        " is red: the figure varies too much. Raise its tolerance in the tier, name it under"
        " `shown`, measure on a quieter machine, or replay more prompts (for acceptance), and"
        " record again.",
    ),
    "not_confirmed": Entry(
        "{outcome} so far, and the run ended before a further launch",
        "",
        "The loss wasn't confirmed. Run the case again.",
    ),
    "fresh_launch_differs": Entry(
        "{first}, which a fresh one didn't confirm",
        "",
        "Two launches disagree on acceptance, because the answers don't repeat. Run the case"
        " again.",
    ),
    "sum_only": Entry(
        "the source reports only the sum of all requests, so how they vary is unknown",
        "use an engine whose answers carry their own counts",
        "Use vLLM 0.29 or newer, and start an attached one with"
        " `--per-request-spec-decode-metrics summary`.",
    ),
    "few_shared_prompts": Entry(
        "{prompts} shared prompts, {needed} are needed",
        "{remedy}",
        "Raise `prompts`, leave out `--num-prompts`, and record again.",
    ),
    "few_stepping_prompts": Entry(
        "fewer than {needed} prompts have a step, or one has nearly all steps",
        "give more prompts, whose answers are of similar length",
    ),
    "no_shared_value": Entry(
        "the shared prompts have no {metric}",
        "",
        "The metric has no value over the prompts that both have. Raise `prompts`, and record"
        " again.",
    ),
    "nothing_shared_accepted": Entry(
        "the baseline accepted no draft on the shared prompts, so no loss could show"
    ),
    "zero_once": Entry(
        "it is 0 in one launch, and isn't in another",
        "",
        "The machine can barely keep the limits of the goodput. Raise them.",
    ),
    "zero_unconfirmed": Entry("it is 0, and another launch has to confirm it"),
    "decided_by": Entry("decided by {metric}"),
    "common_change": Entry(
        "all that ran tonight changed by {change} together, which is subtracted"
    ),
    "engine_interrupted": Entry("interrupted, so the verdicts are those of the run alone"),
    "engine_unmeasured": Entry("couldn't be measured side by side: {error}"),
    "engine_undecided": Entry("measuring both versions side by side decided nothing: {measured}"),
    "engine_kept": Entry(
        "the engine lost no more than {tolerated}, so it is the machine: {measured}"
    ),
    "UNCHECKED": Entry("side A is still to be measured against itself"),
    "launches_vary": Entry(
        "the launches of this case are too few, or vary too much, to confirm it"
    ),
    "few_launches": Entry("there are too few launches to estimate how much they vary"),
    "not_launched": Entry("side {side} has no launch yet"),
    "no_valid_launch": Entry("side {side} has no valid launch yet: {invalid}"),
    "undecidable": Entry("isn't decidable at this tolerance: its launches differ too much"),
    "more_launches": Entry("needs about {needed} launches instead of {launches}"),
    "more_prompts": Entry(
        "needs about {needed} prompts: start anew with --prompts {needed} and another --out"
    ),
    "no_ratio": Entry(
        "side A accepted nothing, B took no step, or a few prompts have nearly all steps: no ratio"
        " can be compared"
    ),
    "sources_differ": Entry(
        "the sides report their acceptance in different ways ({ways}), so they can't be compared"
    ),
    "few_segments": Entry(
        "{segments} can be judged, and {needed} are needed", "soak longer, or with fewer --prompts"
    ),
    "nothing_to_lose": Entry(
        "its value is {value:g} at first, so there is nothing to lose",
        "soak a case that accepts drafts",
    ),
    "soak_undecided": Entry("the interval doesn't decide yet", "soak longer"),
    "soak_too_short": Entry(
        "{sensitivity}; the figure is no more than {loss_frac:.1%} worse in an hour", "{remedy}"
    ),
}
"""Why something is INCONCLUSIVE."""

NO_BASELINE: Mapping[str, Entry] = {
    "nothing_recorded": Entry(
        "nothing recorded in '{environment}'{published}",
        "",
        "No machine has a baseline with these settings, and nobody published the acceptance.",
    ),
    "settings_changed": Entry(
        "it was recorded with other settings: {differing}",
        "",
        "The tier, the prompts or the target's files changed. Undo the named change, or record"
        " again.",
    ),
    "not_in_baseline": Entry(
        "the baseline holds no {metric}",
        "",
        "The engine reported no acceptance when the baseline was recorded, or it was INVALID.",
    ),
    "nothing_accepted": Entry(
        "the baseline accepted {nothing}, so no loss could ever show",
        "choose prompts or settings with which drafts are accepted",
        "No draft was accepted when the baseline was recorded. Record again once the drafter"
        " works.",
    ),
}
"""Why something has NO_BASELINE. Most of these reasons end with the command that records one."""

NOT_COMPARABLE: Mapping[str, Entry] = {
    "not_recorded_yet": Entry(
        "not recorded yet: there is no {metric} in the {source}",
        "",
        "This metric is newer than the baseline, or was INVALID when it was recorded.",
    ),
    "not_counted": Entry(
        "{whose} page of counters lacks what this metric is made of",
        "",
        "This version of the engine doesn't count what the metric is made of.",
    ),
    "machine_differs": Entry(
        "nothing recorded in '{environment}'{published}, and {quantity} doesn't carry over from"
        " {source}",
        "",
        "The baseline is from another kind of machine; only acceptance was compared with it.",
    ),
    "acceptance_recorded_alone": Entry("the baseline holds acceptance alone, and no {quantity}"),
    "counted_differently": Entry(
        "{versions}{difference}",
        "",
        "A version or a model runner counts other drafts or steps for the same answers, or a"
        " drafter changed in drafts that come after the end of an answer. The acceptance length is"
        " compared over all steps; record again to judge the rate and the positions.",
    ),
    "source_changed": Entry(
        "measured as {measured}, recorded as {recorded}",
        "",
        "A version or a flag of the engine changed the source of acceptance or power.",
    ),
    "devices_differ": Entry("{difference}", "", "The baseline's power is of other devices."),
    "position_unused": Entry(
        "the baseline never accepted a draft at position {position}: nothing to lose"
    ),
    "fewer_prompts": Entry(
        "the run replayed {prompts}, and {figure} depends on all prompts of the case",
        "leave out --num-prompts to judge it",
    ),
    "attached": Entry(
        "the server was attached to, and the way to it and its other work are in its times"
    ),
    "power_not_sampled": Entry(
        "the power of this launch wasn't sampled", "", "There is no sensor."
    ),
    "power_too_short": Entry(
        "power was watched for {watched_s:.1f} s without a pause, and {needed_s:.0f} s are needed",
        "raise power_s in the tier",
    ),
    "other_card": Entry(
        "{difference}, and cards of one kind may differ by {allowed_frac:.0%}",
        "",
        "It is another card of the same kind.",
    ),
    "tokens_differ": Entry(
        "B has other tokens than A in {prompts}: {examples}",
        "look at the tokenizer and the chat template",
    ),
}
"""Why something is NOT_COMPARABLE."""

UNMEASURED: Mapping[str, Entry] = {
    "SERVER_NOT_STARTED": Entry(
        "{failure}",
        "",
        "The reason names the kind of failure and the remedy, or the first error in the server's"
        " log, above the last 40 lines of the log. After `unknown cause`, read the log. If it"
        " `generated no token in time`, it needs more than 600 s to load:"
        " `--specreg-ready-within-s=1800`.",
    ),
    "MODEL_NOT_FETCHED": Entry(
        "{failure}",
        "",
        "The name doesn't exist, there is no network, `HF_TOKEN` is missing or expired, or you"
        " didn't accept the terms. Type `hf auth login`, or name a folder instead.",
    ),
    "SERVER_DIED": Entry(
        "{failure}",
        "",
        "The server died twice while it was measured. Read the end of its log. Status -9 usually"
        " means that memory ran out (`dmesg`).",
    ),
    "SHARD_MISSING": Entry(
        "shard {shard} isn't there", "run it with --specreg-shard={shard}, and merge again"
    ),
    "SHARD_DIED": Entry("{shard} died before it was done, see '{folder}'"),
    "SHARD_INCOMPLETE": Entry("{shard} ended without having measured it"),
    "further_launch_failed": Entry("{outcome} so far, and a further launch failed: {failure}"),
    "JUDGED_LATER": Entry("speeds are judged when the run's parts are joined"),
    "nothing_measured": Entry("nothing was measured"),
    "answers_not_compared": Entry("the answers weren't compared", "resume the gate"),
    "bug": Entry(
        "ledger '{ledger}': a bug in specreg, {error}",
        "measure the case anew, and report the bug with this file",
    ),
}
"""Why something wasn't measured or judged at all."""

IMPROVED: Mapping[str, Entry] = {
    "gain_not_recorded": Entry(
        "the gain{duration} isn't recorded, so it may be lost unnoticed", "{remedy}"
    )
}
"""Why something is IMPROVED."""

CATALOGUE: Mapping[str, Entry] = {
    **INVALID,
    **REGRESSED,
    **UNDECIDED,
    **NO_BASELINE,
    **NOT_COMPARABLE,
    **UNMEASURED,
    **IMPROVED,
}
"""Every reason, by its code. A code in capitals is shown, for people to look it up here."""
