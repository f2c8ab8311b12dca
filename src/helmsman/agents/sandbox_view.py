"""Files that a program in a sandbox sees.

On Linux only listed places exist: the system, the tools in the user's home, the repository of the session, and the agent's
own files. The rest of the home, `/tmp`, `/run`, `/var` and their sockets do not exist in it; `/tmp` is empty and private. A
few places are hidden even where a session may write around them: Helmsman's own, the logins of agents and the usual places
of secrets. On other systems (macOS) a program may read everything except those.

Codex's profiles have a trap: below a denied place, writing can be allowed again, but reading cannot. So the list names the
visible places, and denies only inside of them.

Commands of Codex itself run in Codex's own sandbox, which shows all files. `hidden_from_commands` lists the few places that
are hidden from them, by the bubblewrap that Codex runs.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.caller_context import expand_home
from helmsman.base.programs import Places, python_places
from helmsman.base.redaction import redact
from helmsman.base.user_directories import config_directory
from helmsman.git.command import repository_root
from helmsman.settings import WORKSPACE_STORES, WORKSPACES, WORKTREES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from helmsman.settings import Settings

LISTS: Final = sys.platform == "linux"
"""True if only listed places are visible."""

TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108
"""Directories that every sandbox has privately, in its memory."""
_NOT_SYSTEM: Final = frozenset({"boot", "dev", "home", "lost+found", "proc", "run", "tmp", "var"})
_OF_VAR: Final = ("/var/cache/fontconfig", "/var/lib/dpkg", "/var/lib/gems", "/var/lib/texmf")
_RESOLVER: Final = Path("/etc/resolv.conf")

TOOLS: Final = (
    *(".asdf", ".bun", ".dotnet", ".fnm", ".ghcup", ".goenv", ".jenv", ".juliaup", ".linuxbrew", ".nix-profile"),
    *(".nodenv", ".npm-global", ".npm-packages", ".nvm", ".opam", ".pixi", ".pyenv", ".rbenv", ".rustup", ".rvm"),
    *(".rye", ".sdkman", ".swiftly", ".volta", "anaconda3", "miniconda3", "miniforge3", "mambaforge", "micromamba"),
    *(".cargo/bin", ".cargo/config.toml", ".cargo/env", ".cargo/git", ".cargo/registry", ".deno/bin", "go/bin"),
    *("go/pkg", ".gradle/caches", ".gradle/jdks", ".gradle/wrapper", ".m2/repository", ".m2/wrapper", "bin"),
    *(".cache/ms-playwright", ".cache/puppeteer", ".local/bin", ".local/lib", ".local/share/claude"),
    *(".local/share/fnm", ".local/share/mise", ".local/share/pipx", ".local/share/pnpm", ".local/share/uv"),
    *(".local/share/virtualenvs", ".gitconfig", ".gitignore", ".gitignore_global", ".config/git/config"),
    *(".config/git/ignore", ".config/git/attributes", ".config/mise", ".condarc", ".tool-versions", ".editorconfig"),
)
"""Below the home, what programs need and what has no secrets."""

LOGINS: Final = (
    *(".claude", ".claude.json", ".config/github-copilot", ".config/opencode", ".copilot", ".gemini"),
    *(".local/share/opencode", ".qwen", ".config/kilo", ".local/share/kilo", ".kilocode", ".kimi-code"),
    *(".config/nanocoder", ".local/share/nanocoder"),
)
"""Places below the home where agents other than Codex keep their logins, settings and sessions."""

_LOGINS_ELSEWHERE: Final = (
    *(("COPILOT_HOME", ""), ("GEMINI_CLI_HOME", ".gemini"), ("QWEN_HOME", ""), ("XDG_CONFIG_HOME", "github-copilot")),
    *(("XDG_CONFIG_HOME", "opencode"), ("XDG_DATA_HOME", "opencode"), ("XDG_CONFIG_HOME", "kilo")),
    *(("XDG_DATA_HOME", "kilo"), ("KIMI_CODE_HOME", ""), ("XDG_CONFIG_HOME", "nanocoder")),
    *(("XDG_DATA_HOME", "nanocoder"), ("NANOCODER_CONFIG_DIR", ""), ("NANOCODER_DATA_DIR", "")),
)
"""Variables with which a user moves these places, and their names in the directory that a variable names."""

CODEX_HOME_NAME: Final = ".codex"

CODEX_LOGIN: Final = ("auth.json", ".credentials.json")
"""Files in Codex's home with its login, and with those for its MCP servers."""

SECRETS: Final = (
    *(".1password", ".ansible/vault", ".aws", ".azure", ".bitwarden", ".boto", ".databrickscfg", ".docker", ".fly"),
    *(".git-credentials", ".gnupg", ".kube", ".mozilla", ".my.cnf", ".netrc", ".npmrc", ".password-store", ".pgpass"),
    *(".pki", ".pypirc", ".s3cfg", ".ssh", ".thunderbird", ".vault-token", ".yarnrc.yml", "snap"),
    *(".bash_history", ".psql_history", ".python_history", ".zsh_history", ".local/share/fish"),
    *(".cargo/credentials", ".cargo/credentials.toml", ".config/Bitwarden", ".config/BraveSoftware", ".config/Slack"),
    *(".config/age", ".config/chromium", ".config/doctl", ".config/gcloud", ".config/gh", ".config/git/credentials"),
    *(".config/glab-cli", ".config/google-chrome", ".config/hub", ".config/microsoft-edge", ".config/op"),
    *(".config/rclone", ".config/sops", ".config/vivaldi", ".gradle/gradle.properties", ".m2/settings.xml"),
    *(".local/share/keyrings", ".local/share/kwalletd", ".terraform.d", ".var/app", "Library/Keychains"),
    *("Library/Application Support/Google/Chrome", "Library/Application Support/Firefox", "Library/Cookies"),
)
"""Usual locations of secrets, below the home."""

RUN_LATER: Final = (
    *(".bash_aliases", ".bash_login", ".bash_logout", ".bash_profile", ".bashrc", ".config/autostart"),
    *(".config/fish", ".config/environment.d", ".config/git", ".config/nvim", ".config/systemd", ".emacs.d"),
    *(".gitconfig", ".local/bin", ".pam_environment", ".profile", ".tmux.conf", ".vim", ".vimrc", ".xprofile"),
    *(".xsessionrc", ".zlogin", ".zprofile", ".zshenv", ".zshrc", "bin"),
)
"""Below the home, what runs outside later: never writable, also in a session that works in the home itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxView:
    """Hidden and visible places on this machine, for one user.

    `own` is Helmsman's: only a narrower writable place makes it visible. `secret` is visible if an agent needs it, or if the
    user or a session names exactly that path. `readable` is from the user's settings.
    """

    homes: tuple[Path, ...]
    own: tuple[Path, ...]
    secret: tuple[Path, ...]
    readable: tuple[Path, ...] = ()

    @classmethod
    def of(cls, settings: Settings, env: Mapping[str, str]) -> SandboxView:
        """Return the view for a user by their settings. Blocks, briefly."""
        homes = _homes(env)
        # Helmsman's own files hold its database and tokens; a sandboxed program must not read either.
        own = [settings.state_dir, Path(config_directory(env))]
        named: list[Path] = []
        if settings.user_file is not None:
            own.append(settings.user_file.parent if settings.user_file.name == "helmsman.toml" else settings.user_file)
            own.append(settings.user_file)
        for file in settings.files:
            # Only the user's own files: a project's file could name any path to hide.
            if file.trusted:
                named += [_with_private_parent(path, homes) for path in named_files(file.content)]
        secret = [*_codex_homes(settings, env, homes), *_other_logins(settings, env, homes)]
        secret += [home / name for home in homes for name in SECRETS]
        secret += [
            place for place in _runtime_directories(env) if not any(home.is_relative_to(place) for home in homes)
        ]
        # A home inside one of these places would be hidden as a whole.
        own = [place for place in own if not any(home.is_relative_to(place) for home in homes)]
        return cls(
            homes=homes,
            own=_real([*own, *named]),
            secret=_real(secret),
            readable=_real(settings.sandbox_readable),
        )

    def table(
        self,
        *,
        argv: Sequence[str],
        env: Mapping[str, str],
        directory: Path | None,
        writable: Sequence[Path],
        kept: Sequence[Path],
        needed: Sequence[Path],
        hides: Sequence[Path] = (),
    ) -> dict[str, str]:
        """Return access by path, as a permission profile of Codex has it. Blocks, briefly.

        `writable` may be written except for `kept`; `needed` are the paths that the program itself reads, except for those
        that it `hides`.
        """
        needs, at = _real(needed), () if directory is None else (directory,)
        # An agent needs its own login, and a user may name a hidden place, but only that exact place.
        secret = [place for place in self.secret if not _is_named(place, needs, (*self.readable, *writable, *at))]
        shown: list[Path] = [*at]
        if LISTS:
            shown += [place for place in self._shown(argv, env) if not _inside(place, (*self.own, *secret))]
            shown += [place for place in self._repositories((*writable, *at)) if not _inside(place, secret)]
            shown += [place for place in self.readable if not _inside(place, self.own)]
        shown += [one for place in needed for one in spellings(place) if one.exists()]
        # Settings in a home are often links to a directory of dotfiles.
        shown += [place for place in _links_of(needs) if not _inside(place, (*self.own, *secret))]
        hiding = (*self.own, *secret)
        later = [home / name for home in self.homes for name in RUN_LATER]
        later += [Path(place) for place in python_places()]  # changes there would run outside, in Helmsman itself
        files = {":minimal" if LISTS else ":root": "read"}
        files |= {str(place): "read" for place in shown if not _is_shown_by_others(place, shown, writable, hiding)}
        files |= {str(place): "write" for place in writable}
        roots = (*writable, *_real(writable))
        # A session in the home itself must not write what runs at the next login.
        files |= {str(one): "read" for one in later if one not in roots and _inside(one, roots) and one.exists()}
        files |= {str(place): "read" for place in kept}
        visible = [Path(path) for path in files if path.startswith("/")]
        # Where only listed places exist, only hidden places inside a listed one have to be denied.
        hidden = [place for place in hiding if not LISTS or _inside(place, visible)]
        denied = [one for place in hidden for one in ([place] if place in self.own else _denied(place, shown))]
        outer = [place for place in denied if place.exists() and not _inside(place.parent, denied)]
        outer += [place for place in hides if place.exists() and place not in writable]
        return files | {str(place): "deny" for place in outer}

    def made_directories(self, table: Iterable[str]) -> list[str]:
        """Return the directories that a sandbox makes in its own memory, as parents of the listed places.

        Files written there are lost, so the directories are closed for writing. Temporary ones are not.
        """
        listed, temporary = {Path(path) for path in table if path.startswith("/")}, [*map(Path, TEMPORARY)]
        above = {parent for path in listed for parent in path.parents}
        return sorted(
            str(place)
            for place in above
            # A place inside a listed one is a real directory, not one that the sandbox makes.
            if not _inside(place, listed) and (_inside(place, self.homes) or not _inside(place, temporary))
        )

    @property
    def _bases(self) -> tuple[Path, ...]:
        """Directories that are not visible as a whole."""
        return (*self.homes, *_temporary(), Path("/run"), Path("/var"))

    def _shown(self, argv: Sequence[str], env: Mapping[str, str]) -> Iterator[Path]:
        """Yield what everything in a sandbox may read."""
        yield from _system_places(self._bases)
        for home in self.homes:
            for name in TOOLS:
                if (place := home / name).exists():
                    yield from spellings(place)
        named = [Path(entry) for entry in env.get("PATH", "").split(os.pathsep) if entry.startswith("/")]
        named += [Path(env[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT", "NVM_DIR") if env.get(name)]
        named += [place for word in argv for place in _installation(word)]
        named.append(Path(sys.prefix))  # checks and MCP servers often use the environment that Helmsman is in
        places = Places.of(env)
        # A session could put a link there to whatever it wants to see.
        kept = [
            one for one in named if one.resolve() == one.absolute() or not places.reason_against(str(one.absolute()))
        ]
        yield from self._without_bases(kept)

    def _repositories(self, writable: Sequence[Path]) -> Iterator[Path]:
        """Yield the repositories of the writable places, including a worktree in the state directory and its main
        repository.
        """
        for directory in writable:
            for place in self._without_bases(_repository(directory)):
                if not any(one.is_relative_to(place) for one in self.own):
                    yield place

    def _without_bases(self, places: Iterable[Path]) -> Iterator[Path]:
        for place in places:
            # A `PATH` entry such as `/` or the home would make everything visible.
            contains_base = any(base.is_relative_to(one) for one in spellings(place) for base in self._bases)
            if not contains_base and place.exists():
                yield from spellings(place)


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenPlaces:
    """Places to hide, and places inside of them to show read-only."""

    hidden: tuple[Path, ...]
    shown: tuple[Path, ...] = ()

    @property
    def around(self) -> list[Path]:
        """Return the parents of hidden places, outermost first. A program that renames one sees the files in it."""
        found = {parent for place in self.hidden for parent in place.parents if parent != Path("/")}
        return sorted(place for place in found if not _inside(place, self.hidden))

    def shown_in(self, place: Path) -> list[Path]:
        """Return the visible places whose innermost hidden parent is this one."""
        # The innermost one, as each hidden place reopens the visible places in it.
        return [one for one in self.shown if place == max(_around(one, self.hidden), default=None, key=_depth)]


def hidden_from_commands(settings: Settings, env: Mapping[str, str], codex: Path) -> HiddenPlaces:
    """Return the places that no sandboxed command of a Codex session may read. Blocks, briefly.

    They are Helmsman's own, files that the configuration names, and logins of agents, Codex's included.
    """
    view = SandboxView.of(settings, env)
    homes = _real(_codex_homes(settings, env, view.homes))
    logins = [place for place in _real(_other_logins(settings, env, view.homes)) if place not in view.readable]
    logins = [place for place in logins if not any(home.is_relative_to(place) for home in (*view.homes, *homes))]
    own = [place for place in view.own if place != Path("/")]
    state = settings.state_dir.resolve()
    # Worktrees and workspaces of sessions are below the state directory, and perhaps the copy of Codex.
    shown = [state / WORKTREES, state / WORKSPACES, state / WORKSPACE_STORES, codex.resolve().parent.parent, *homes]
    shown = [place for place in shown if place not in own and _inside(place, own)]
    shown += [place for place in view.readable if _inside(place, logins) and not _inside(place, own)]
    hidden = sorted({*own, *logins})
    # A place inside a hidden one needs no separate mask, unless something around it is shown.
    hidden = [place for place in hidden if not _inside(place.parent, hidden) or _inside(place, shown)]
    hidden += [home / name for home in homes for name in CODEX_LOGIN]
    return HiddenPlaces(hidden=tuple(hidden), shown=tuple(dict.fromkeys(shown)))


def _codex_homes(settings: Settings, env: Mapping[str, str], homes: Sequence[Path]) -> list[Path]:
    named = [Path(env["CODEX_HOME"])] if env.get("CODEX_HOME") else []
    return [settings.codex_home, *named, *(home / CODEX_HOME_NAME for home in homes)]


def _other_logins(settings: Settings, env: Mapping[str, str], homes: Sequence[Path]) -> list[Path]:
    """Return where agents other than Codex keep their logins."""
    named = [Path(env[variable], name) for variable, name in _LOGINS_ELSEWHERE if env.get(variable)]
    return [settings.claude_home, *named, *(home / name for home in homes for name in LOGINS)]


def _depth(place: Path) -> int:
    return len(place.parts)


def _around(place: Path, others: Iterable[Path]) -> list[Path]:
    return [other for other in others if place.is_relative_to(other)]


def named_files(content: Any) -> Iterator[Path]:
    """Yield the files that a configuration names, but for programs: token files, certificates, prompts, …"""
    if isinstance(content, dict):
        for key, value in content.items():
            # Programs have to stay readable, as they may be run in a session.
            if key != "command":
                yield from named_files(value)
    elif isinstance(content, list):
        for value in content:
            yield from named_files(value)
    elif isinstance(content, str) and content.startswith(("/", "~")) and "\0" not in content:
        path = expand_home(content)
        with suppress(OSError, ValueError):
            status = path.stat()
            # Neither sockets nor directories, and nothing that is executable.
            if stat.S_ISREG(status.st_mode) and not status.st_mode & 0o111:
                yield path


def _homes(env: Mapping[str, str]) -> tuple[Path, ...]:
    import pwd  # only where there are sandboxes

    found = [Path(env.get("HOME") or "/")]
    # `HOME` may be set to another place than the account's.
    with suppress(KeyError):
        found.append(Path(pwd.getpwuid(os.geteuid()).pw_dir))
    return tuple(place for place in _real(found) if place != Path("/"))


def _temporary() -> tuple[Path, ...]:
    return _real([Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path(tempfile.gettempdir())])  # noqa: S108


def _runtime_directories(env: Mapping[str, str]) -> list[Path]:
    """Return where the sockets of the user's session are: `systemd --user` and others run things outside."""
    named = [Path(env["XDG_RUNTIME_DIR"])] if env.get("XDG_RUNTIME_DIR", "").startswith("/") else []
    return [place for place in (*named, Path(f"/run/user/{os.geteuid()}")) if place != Path("/")]


def _system_places(bases: Sequence[Path]) -> Iterator[Path]:
    """Yield the directories of the system: all at the root but the user's, temporary and runtime ones."""
    with os.scandir("/") as entries:
        found = sorted(Path(entry.path) for entry in entries if entry.name not in _NOT_SYSTEM)
    for place in found:
        with suppress(OSError, RuntimeError):
            real = place.resolve(strict=True)
            # A link at the root, such as `/bin`, counts by where it leads.
            if not any(base.is_relative_to(real) or real.is_relative_to(base) for base in bases):
                yield place
    yield from (place for place in map(Path, _OF_VAR) if place.exists())
    with suppress(OSError, RuntimeError):  # names must resolve; the directory of it has sockets
        if (resolver := _RESOLVER.resolve(strict=True)) != _RESOLVER:
            yield resolver


def _installation(word: str) -> Iterator[Path]:
    """Yield the files of a program or script: its package, or the directory around it."""
    path = Path(word)
    if not path.is_absolute() or not path.is_file():
        return
    for one in spellings(path):
        # The outermost `node_modules`: packages import each other.
        package = next((place for place in reversed(one.parents) if place.name == "node_modules"), None)
        yield package or one.parent
        yield one


def _repository(directory: Path) -> Iterator[Path]:
    """Yield the repository around a directory, and the one that it is a worktree of."""
    root = repository_root(directory)
    if root is None:
        return
    yield root
    with suppress(OSError, ValueError):
        if (mark := root / ".git").is_file():
            git = (root / mark.read_text(encoding="utf-8").strip().removeprefix("gitdir: ")).resolve()
            common = git.parent.parent
            back = Path((git / "gitdir").read_text(encoding="utf-8").strip())
            # Both sides must say so: a session can write a `.git` below its directory, but not into another repository.
            if common.name == ".git" and git.parent.name == "worktrees" and back.resolve() == mark.resolve():
                yield common.parent


def _links_of(directories: Iterable[Path]) -> Iterator[Path]:
    """Yield where links in directories lead: people keep settings of agents among their dotfiles."""
    for directory in directories:
        with suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_symlink():
                    with suppress(OSError, RuntimeError):
                        yield Path(entry.path).resolve(strict=True)


def _with_private_parent(path: Path, homes: Sequence[Path]) -> Path:
    """Return the directory of a file if it is private to this user, otherwise the file.

    Codex hides what exists when a sandbox starts. A file that is replaced later would be visible; a file in a hidden
    directory is not. A home and a repository are private too (umask 077), but are not hidden for one file in them.
    """
    with suppress(OSError):
        parent = path.resolve().parent
        status = parent.stat()
        is_private = status.st_uid == os.geteuid() and not status.st_mode & 0o077
        if is_private and not any(home.is_relative_to(parent) for home in homes) and repository_root(parent) is None:
            return parent
    return path


def _is_named(place: Path, needs: Sequence[Path], named: Sequence[Path]) -> bool:
    """Return whether an agent needs a hidden place, or whether exactly that place was named."""
    return _inside(place, needs) or place in named


def _is_shown_by_others(place: Path, shown: Sequence[Path], writable: Sequence[Path], hiding: Sequence[Path]) -> bool:
    """Return whether a place is visible already, as part of another.

    A read-only place in a writable one would remove write access from the session. And bubblewrap cannot mount on a link.
    """
    around = [other for other in (*shown, *writable) if other != place and place.is_relative_to(other)]
    return place in writable or any(
        not any(place.is_relative_to(one) and one.is_relative_to(other) for one in hiding) for other in around
    )


def _denied(place: Path, shown: Sequence[Path]) -> Iterator[Path]:
    """Yield the paths to deny in order to hide a place, except for the shown places below it."""
    if place in shown:
        return
    below = [one for one in shown if one.is_relative_to(place)]
    if not below:
        yield place
        return
    with suppress(OSError):
        # Some of it is shown, so deny everything else in it, entry by entry.
        for entry in sorted(place.iterdir()):
            yield from _denied(entry, below)


def _inside(place: Path, others: Iterable[Path]) -> bool:
    return any(place.is_relative_to(other) for other in others)


def _real(paths: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(path.expanduser().resolve() for path in paths))


def spellings(path: Path) -> list[Path]:
    """Return a path as given, and with links resolved if that differs."""
    return list(dict.fromkeys([path.absolute(), path.resolve()]))


# --- variables -------------------------------------------------------------------------------------------------------


_SOCKETS: Final = frozenset(
    {
        *("CONTAINER_HOST", "DBUS_LAUNCHD_SESSION_BUS_SOCKET", "DISPLAY", "DOCKER_HOST", "GPG_AGENT_INFO"),
        *("ICEAUTHORITY", "GIT_ASKPASS", "GNOME_KEYRING_CONTROL", "INVOCATION_ID", "JOURNAL_STREAM"),
        *("KITTY_LISTEN_ON", "LISTEN_FDNAMES", "LISTEN_FDS", "LISTEN_PID", "MANAGERPID", "NOTIFY_SOCKET", "NVIM"),
        *("NVIM_LISTEN_ADDRESS", "PULSE_SERVER", "SESSION_MANAGER", "SSH_AGENT_PID", "SSH_ASKPASS", "STY"),
        *("SUDO_ASKPASS", "SWAYSOCK", "I3SOCK", "TMUX", "TMUX_PANE", "VSCODE_GIT_ASKPASS_EXTRA_ARGS"),
        *("VSCODE_GIT_ASKPASS_MAIN", "VSCODE_GIT_ASKPASS_NODE", "WAYLAND_DISPLAY", "WSL_INTEROP", "XAUTHORITY"),
        *("XDG_RUNTIME_DIR", "ZELLIJ", "ZELLIJ_SESSION_NAME"),
    }
)
_SOCKET_NAME: Final = re.compile(r"(.*_)?(SOCK|SOCKET|SOCKET_PATH|BUS_ADDRESS|IPC_HANDLE|IPC_HOOK|IPC_HOOK_CLI)")
_SECRET_WORD: Final = re.compile(r"(.*_)?DSN")
"""Redaction leaves these in texts."""
_GIT_SETTING: Final = re.compile(r"GIT_CONFIG_(KEY|VALUE)_\d+")
"""Helmsman sets these itself: the names of settings, and harmless values."""


_CLOUD_PLACES: Final = {"aws": (".aws",), "google": (".config/gcloud",), "azure": (".azure",)}
_CLOUD_VARIABLES: Final = {"aws": ("AWS_*",), "google": ("GOOGLE_*", "VERTEX_*"), "azure": ("AZURE_*",)}
_GOOGLE_FILE: Final = "GOOGLE_APPLICATION_CREDENTIALS"


def cloud_logins(env: Mapping[str, str], clouds: Mapping[str, str]) -> tuple[Path, ...]:
    """Return where the logins are of the clouds through which an agent reaches its model.

    `clouds` says which variable, if it is set, means which cloud.
    """
    used = {cloud for name, cloud in clouds.items() if env.get(name)}
    home = Path(env.get("HOME") or Path.home())
    places = [home / place for cloud in sorted(used) for place in _CLOUD_PLACES[cloud]]
    named = [Path(env[_GOOGLE_FILE])] if "google" in used and env.get(_GOOGLE_FILE) else []
    return (*places, *named)


def cloud_variables(env: Mapping[str, str], clouds: Mapping[str, str]) -> tuple[str, ...]:
    """Return the patterns of the variables that hold those logins."""
    return tuple(name for variable, cloud in clouds.items() if env.get(variable) for name in _CLOUD_VARIABLES[cloud])


def sandbox_environment(env: Mapping[str, str], passed: Sequence[str]) -> dict[str, str]:
    """Return the variables that a program in a sandbox gets. Blocks, briefly.

    `passed` are patterns (`ANTHROPIC_*`) for secrets that it needs. Nothing makes a variable pass that names a socket.
    """
    return {
        name: value
        for name, value in env.items()
        if not _names_socket(name, value)
        and (not _is_secret(name, value) or any(fnmatchcase(name, pattern) for pattern in passed))
    }


def _names_socket(name: str, value: str) -> bool:
    if name in _SOCKETS or _SOCKET_NAME.fullmatch(name) or value.startswith(("unix:", "fd://", "npipe:")):
        return True
    if not value.startswith("/") or os.pathsep in value:
        # A list of directories is not a socket.
        return False
    try:
        return stat.S_ISSOCK(os.stat(value.partition(",")[0]).st_mode)  # noqa: PTH116 - tmux adds more after a comma
    except (OSError, ValueError):
        return False


def _is_secret(name: str, value: str) -> bool:
    if not value or _GIT_SETTING.fullmatch(name):
        return False
    return _SECRET_WORD.fullmatch(name) is not None or redact(f"{name}={value}") != f"{name}={value}"
