"""``mlxspec groups``: builds the acoustic groups of a voice, shows them, and swaps a sound's tokens within them so that one hears what they cost."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxspec.cli.arguments import Parser, above_zero, share, whole
from mlxspec.cli.terminal import Terminal
from mlxspec.errors import MlxspecError, UsageError


def parser() -> Parser:
    result = Parser(
        "groups",
        "VOICE",
        "Build and show the acoustic groups that approximate speech (speak --mirror) uses. Groups that were built before are read from the cache.",
        epilog="The swap test: --swap IN.wav -o OUT.wav writes the sound again with every token replaced by any of its group.\n"
        "What is heard then is what groups of that size cost.",
    )
    result.one("--source", help="where vectors come from: head, input or codebook (default: the voice's own)", metavar="SOURCE")
    result.one("--measure", help="how they are compared: cosine, centred or distance (default: the voice's own)", metavar="MEASURE")
    result.one("--mean-size", help="mean size of a group (default: the voice's own)", kind=above_zero("--mean-size"), metavar="X")
    result.one("--distance", help="instead: the mean distance in a group, of that between any two", kind=share("--distance"), metavar="D")
    result.one("--show", help="show the group of this code", kind=whole("--show", 0), metavar="CODE")
    result.one("--swap", help="a sound to swap the tokens of", metavar="IN.wav")
    result.one("-o", "--output", help="where the swapped sound goes", metavar="FILE")
    result.one("--seed", help="of the swapping (default: 0)", kind=whole("--seed", 0), metavar="N")
    result.switch("--force", help="write over an existing file")
    result.switch("--json", help="print one JSON object")
    result.common()
    return result


def groups(argv: list[str], terminal: Terminal, environ: Mapping[str, str]) -> int:
    """The verb."""
    namespace, words = parser().read(argv)
    given: dict[str, Any] = vars(namespace)
    if len(words) != 1:
        raise UsageError(f"groups takes one voice and {len(words) or 'none'} was given: mlxspec groups VOICE (a name or a folder).")
    if "mean_size" in given and "distance" in given:
        raise UsageError("--mean-size and --distance both say how large groups are: give one of them.")
    if ("swap" in given) != ("output" in given):
        raise UsageError("--swap IN.wav and -o FILE go together: give both, or neither.")
    terminal.quiet = given.get("quiet", False)

    with terminal.stdout_guarded():
        found = report(words[0], given, terminal)
    if given.get("json"):
        terminal.json(found)
        return 0
    for line in shown(found):
        terminal.print(line)
    return 0


def report(name: str, given: dict[str, Any], terminal: Terminal) -> dict[str, Any]:
    """Builds or reads the groups, and does what else was asked for."""
    from mlxspec.audio.codes.codec import NeuralCodec
    from mlxspec.audio.codes.groups import MEASURES, Size
    from mlxspec.audio.sound.files import check_path
    from mlxspec.loading.load import load_model
    from mlxspec.settings.options import Options
    from mlxspec.speech.groups import voice_groups
    from mlxspec.speech.voice_folder import find_voice

    files = find_voice(name)
    output = check_path(given["output"], given.get("force", False)) if "output" in given else None
    source, measure = given.get("source", files.groups.source), given.get("measure", files.groups.measure)
    if measure not in MEASURES:
        raise UsageError(f"--measure {measure} is unknown: give one of {', '.join(MEASURES)}.")
    try:
        size = Size(distance=given["distance"]) if "distance" in given else Size(mean=given.get("mean_size", files.groups.mean))
    except ValueError as error:
        raise UsageError(str(error)) from error
    codec = NeuralCodec.load(files.codec)
    if codec.codes != files.layout.codes:
        raise MlxspecError(f"The codec of {files.name} has {codec.codes} codes a slot and its layout {files.layout.codes}: fetch the voice again.")
    loaded = load_model(Options(model=str(files.folder)), terminal.notice)
    made = voice_groups(loaded.model, loaded.digest, files.layout, codec, source, measure, size, terminal.notice)
    audio = [i for span in files.layout.slots for i in span.ids]
    sizes = made.sizes(audio)
    found: dict[str, Any] = {
        "voice": files.name,
        "source": source,
        "measure": measure,
        "codes": len(audio),
        "groups": len(made),
        "mean_size": float(sizes.mean()),
        "largest": int(sizes.max()),
        "alone": int((sizes == 1).sum()),
    }
    if "show" in given:
        code = given["show"]
        span = files.layout.slots[0]
        if code >= span.count:
            raise UsageError(f"--show {code} is no code of {files.name}: give 0 to {span.count - 1}.")
        found["group"] = [int(token) - span.first for token in made.around(span.first + code)]
    if output is not None:
        found["swap"] = swap(given["swap"], output, codec, files.layout, made, given.get("seed", 0))
    return found


def swap(source: str, output: Path, codec: Any, layout: Any, groups: Any, seed: int) -> dict[str, Any]:
    """The swap test: a sound through the codec, its tokens swapped within their groups."""
    from mlxspec.audio.codes.groups import swapped
    from mlxspec.audio.sound.files import SoundFile, read_sound

    frames = codec.encode(read_sound(source, codec.sample_rate))
    tokens, share = swapped(groups, layout.tokens(frames), seed)
    with SoundFile(output, codec.sample_rate) as file:
        file.write(codec.decode(layout.frames(tokens)))
    return {"input": str(source), "output": str(output), "tokens": len(tokens), "share_swapped": share, "seed": seed}


def shown(found: dict[str, Any]) -> list[str]:
    """The report as lines."""
    head = f"{found['voice']}: {found['groups']} groups of {found['codes']} codes, by {found['measure']} of {found['source']} vectors"
    lines = [head, f"mean size {found['mean_size']:.2f}, largest {found['largest']}, alone {found['alone']} ({found['alone'] / found['codes']:.0%})"]
    if "group" in found:
        lines.append("group: " + " ".join(map(str, found["group"])))
    if "swap" in found:
        lines.append(f"{found['swap']['output']}: {found['swap']['share_swapped']:.1%} of {found['swap']['tokens']} tokens swapped")
    return lines
