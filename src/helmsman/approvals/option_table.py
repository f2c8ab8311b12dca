"""The options of the programs that people deny: which spellings are one option, and what else an option does.

One line is one program, or one of its subcommands. An option is written with all of its spellings, the last of which is
its name (`-r,-R,--recursive`). What follows the spellings:

    =           it takes a value, in the same word or in the next one
    ?           it may have a value, in the same word only
    :a,b        it is short for the options a and b together
    >a,b=x      whoever gives it gets the effect of option a, and of b with the value x, too
    ~a          perhaps that of a, too
    !           its value is code, or a file full of options: nobody can tell what it does

The lists need not be complete. An option that is not here is one that nobody understands, and what nobody understands is
asked about where it could be what a rule denies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Final


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `effects` are the options it amounts to, each with a value if it sets one; itself among them."""

    name: str
    value: str
    effects: tuple[tuple[str, str | None], ...]
    possible: tuple[str, ...]
    opaque: bool


@dataclass(frozen=True, slots=True)
class Grammar:
    """How a program reads its words.

    `one_dash`: -name is --name. `stops`: options end at the first word that is none. `operands`: what kind of things the
    other words are, where these have several spellings too.
    """

    options: dict[str, Option] = field(default_factory=dict[str, Option])
    one_dash: bool = False
    stops: bool = False
    operands: str = ""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TOKEN: Final = re.compile(
    r"(?P<names>[^=?:>~!]+)(?P<value>[=?]?)(?::(?P<short_for>[^>~!]+))?(?:>(?P<sure>[^~!]+))?(?:~(?P<maybe>[^!]+))?(?P<opaque>!?)"
)


def _options(text: str) -> dict[str, Option]:
    found: dict[str, Option] = {}
    for token in text.split():
        match = _TOKEN.fullmatch(token)
        assert match is not None, token
        spellings = match["names"].split(",")
        name = spellings[-1].lstrip("-")
        amounts_to = match["short_for"].split(",") if match["short_for"] else [name]
        amounts_to += match["sure"].split(",") if match["sure"] else []
        effects = [(effect.partition("=")[0], effect.partition("=")[2] or None) for effect in amounts_to]
        possible = tuple(match["maybe"].split(",")) if match["maybe"] else ()
        option = Option(name, match["value"], tuple(effects), possible, bool(match["opaque"]))
        found.update(dict.fromkeys(spellings, option))
    return found


_TREES: Final = "--pathspec-from-file=! --pathspec-file-nul -q,--quiet --progress --recurse-submodules?"
_GIT: Final = {
    "git": """
        -C= -c= --config-env=! --exec-path?! --git-dir= --work-tree= --namespace= --super-prefix= --attr-source=
        -p,--paginate -P,--no-pager --bare --no-replace-objects --literal-pathspecs --glob-pathspecs
        --noglob-pathspecs --icase-pathspecs --no-optional-locks --no-lazy-fetch --no-advice --html-path --man-path
        --info-path -v,--version -h,--help
        """,
    "git push": """
        -v,--verbose -q,--quiet --repo= --all,--branches --mirror>force,force-with-lease,delete,prune,all
        -d,--delete~force,force-with-lease --tags -n,--dry-run --porcelain -f,--force>force-with-lease
        --force-with-lease?>force --force-if-includes --recurse-submodules= --thin --receive-pack,--exec=!
        -u,--set-upstream --progress --prune>delete~force,force-with-lease --no-verify --verify --follow-tags
        --signed? --atomic -o,--push-option= -4,--ipv4 -6,--ipv6
        """,
    "git reset": f"--mixed --soft --hard --merge --keep -p,--patch -N,--intent-to-add --no-refresh --refresh {_TREES}",
    "git clean": "-q,--quiet -n,--dry-run -f,--force -i,--interactive~force -d -e,--exclude= -x -X",
    "git checkout": f"""
        -b= -B=>b~force -l --guess --overlay -m,--merge --conflict= -d,--detach -t,--track? -f,--force --orphan=
        --overwrite-ignore --ignore-other-worktrees -2,--ours -3,--theirs -p,--patch --ignore-skip-worktree-bits
        {_TREES}
        """,
    "git switch": f"""
        -c,--create= -C,--force-create=>create~force --guess -m,--merge --conflict= -d,--detach -t,--track?
        --discard-changes,-f,--force --orphan= --overwrite-ignore --ignore-other-worktrees {_TREES}
        """,
    "git restore": f"""
        -s,--source= -S,--staged -W,--worktree --ignore-unmerged --overlay -m,--merge --conflict= -2,--ours
        -3,--theirs -p,--patch --ignore-skip-worktree-bits {_TREES}
        """,
    "git branch": """
        -v,--verbose -q,--quiet -t,--track? --set-upstream -u,--set-upstream-to= --unset-upstream --color?
        -r,--remotes --contains,--with= --no-contains,--without= --abbrev? -a,--all -d,--delete -D:delete,force
        -m,--move -M:move,force -c,--copy -C:copy,force -l,--list --show-current --create-reflog --edit-description
        -f,--force --merged? --no-merged? --column? --sort= --points-at= -i,--ignore-case --recurse-submodules
        --format= --omit-empty
        """,
    "git tag": """
        -l,--list -n? -d,--delete -v,--verify -a,--annotate -m,--message= -F,--file= -e,--edit -s,--sign --cleanup=
        -u,--local-user= -f,--force --create-reflog --column? --contains,--with= --no-contains,--without= --merged?
        --no-merged? --sort= --points-at= --format= --color? -i,--ignore-case --trailer= --omit-empty
        """,
    "git commit": """
        -q,--quiet -v,--verbose -F,--file= --author= --date= -m,--message= -c,--reedit-message= -C,--reuse-message=
        --fixup=~amend --squash= --reset-author --trailer= -s,--signoff -t,--template= -e,--edit --no-edit
        --cleanup= --status -S,--gpg-sign? --no-gpg-sign -a,--all -i,--include --interactive -p,--patch -o,--only
        -n,--no-verify --verify --dry-run --short --branch --ahead-behind --porcelain --long -z,--null --amend
        --no-post-rewrite --post-rewrite -u,--untracked-files? --allow-empty --allow-empty-message
        --pathspec-from-file= --pathspec-file-nul
        """,
    "git rebase": """
        --onto= --keep-base --no-verify --verify -q,--quiet -v,--verbose -n,--no-stat --stat --signoff
        --committer-date-is-author-date --reset-author-date,--ignore-date -C= --ignore-whitespace --whitespace=
        -f,--force-rebase,--no-ff --ff --continue --skip --abort --quit --edit-todo --show-current-patch --apply
        -m,--merge -i,--interactive --preserve-merges --rerere-autoupdate --empty= -k,--keep-empty --autosquash
        --update-refs -S,--gpg-sign? --autostash -x,--exec= --allow-empty-message -r,--rebase-merges? --fork-point
        -s,--strategy= -X,--strategy-option= --root --reschedule-failed-exec --reapply-cherry-picks
        """,
    "git merge": """
        -n --stat --summary --log? --squash --commit --no-commit -e,--edit --no-edit --cleanup= --ff --no-ff
        --ff-only --rerere-autoupdate --verify-signatures -s,--strategy= -X,--strategy-option= -m,--message=
        -F,--file= --into-name= -v,--verbose -q,--quiet --abort --quit --continue --allow-unrelated-histories
        --progress -S,--gpg-sign? --autostash --overwrite-ignore --signoff --no-verify --verify --compact-summary
        """,
    "git rm": """
        -n,--dry-run -q,--quiet --cached -f,--force -r --ignore-unmatch --sparse --pathspec-from-file=!
        --pathspec-file-nul
        """,
    "git config": """
        --global --system --local --worktree -f,--file= --blob= --get --get-all --get-regexp --get-urlmatch
        --replace-all --add --unset --unset-all --rename-section --remove-section -l,--list --fixed-value -e,--edit
        --get-color --get-colorbool -t,--type= --bool --int --bool-or-int --bool-or-str --path --expiry-date
        -z,--null --name-only --includes --show-origin --show-scope --show-names --default= --comment= --all
        --append --regexp --value= --url=
        """,
    "git filter-branch": """
        --setup= --subdirectory-filter= --env-filter= --tree-filter= --index-filter= --parent-filter= --msg-filter=
        --commit-filter= --tag-name-filter= --prune-empty --original= -d= -f,--force --state-branch=
        --remap-to-ancestor --all
        """,
}

_FILES: Final = {
    "rm": """
        -f,--force -i -I --interactive?~force --one-file-system --no-preserve-root --preserve-root? -r,-R,--recursive
        -d,--dir -v,--verbose -P -W -x --help --version
        """,
    "chmod": """
        -c,--changes -f,--silent,--quiet -v,--verbose -R,--recursive --no-preserve-root --preserve-root
        --reference=! -h -H -L -P --dereference --no-dereference -r -w -x -X -s -t -u -g -o -a --help --version
        """,
    "chown": """
        -c,--changes -f,--silent,--quiet -v,--verbose -R,--recursive --no-preserve-root --preserve-root --reference=
        --from= --dereference -h,--no-dereference -H -L -P -n -x --help --version
        """,
    "sed": """
        -n,--quiet,--silent --debug -e,--expression= -f,--file= --follow-symlinks -i,--in-place? -l,--line-length=
        --posix -E,-r,--regexp-extended -s,--separate --sandbox -u,--unbuffered -z,--null-data -b,--binary --help
        --version
        """,
    "tar": """
        -A,--catenate,--concatenate -c,--create --delete -d,--diff,--compare -r,--append --test-label -t,--list
        -u,--update -x,--extract,--get -C,--directory= --exclude= -T,--files-from=! -X,--exclude-from=
        -k,--keep-old-files --keep-newer-files --overwrite --remove-files --skip-old-files -U,--unlink-first
        --recursive-unlink -W,--verify -O,--to-stdout --to-command=! -m,--touch
        -p,--preserve-permissions,--same-permissions --same-owner --no-same-owner -s,--preserve-order,--same-order
        -f,--file= -F,--info-script,--new-volume-script=! -L,--tape-length= -M,--multi-volume --rmt-command=!
        --rsh-command=! -b,--blocking-factor= -B,--read-full-records -i,--ignore-zeros -H,--format= --posix
        -V,--label= -a,--auto-compress -I,--use-compress-program=! -j,--bzip2 -J,--xz --lzip --lzma --lzop --zstd
        -z,--gzip,--gunzip,--ungzip -Z,--compress,--uncompress -h,--dereference -K,--starting-file=
        -N,--newer,--after-date= --one-file-system -P,--absolute-names --strip-components= --transform,--xform=
        --checkpoint? --checkpoint-action=! -l,--check-links -R,--block-number --totals? -v,--verbose
        -w,--interactive -o -g,--listed-incremental= -G,--incremental -n,--seek -S,--sparse --numeric-owner --owner=
        --group= --mode= --mtime=
        """,
    "find": """
        -H -L -P -D= -O? -delete -exec=~delete! -execdir=~delete! -ok=~delete! -okdir=~delete! -fls= -fprint=
        -fprint0= -fprintf= -files0-from=! -name= -iname= -path= -ipath= -wholename= -iwholename= -regex= -iregex=
        -lname= -ilname= -type= -xtype= -size= -mtime= -mmin= -atime= -amin= -ctime= -cmin= -newer= -anewer=
        -cnewer= -perm= -user= -group= -uid= -gid= -maxdepth= -mindepth= -links= -inum= -samefile= -regextype=
        -fstype= -used= -printf= -print -print0 -ls -prune -quit -empty -executable -readable -writable -nouser
        -nogroup -true -false -not -and -or -a -o -depth -d -mount -xdev -daystart -follow -noleaf -warn -nowarn
        -ignore_readdir_race -noignore_readdir_race
        """,
    "make": """
        -b -m -B,--always-make -C,--directory= -d --debug? -e,--environment-overrides -E,--eval=!
        -f,--file,--makefile= -i,--ignore-errors -I,--include-dir= -j,--jobs? -k,--keep-going
        -l,--load-average,--max-load? -L,--check-symlink-times -n,--just-print,--dry-run,--recon
        -o,--old-file,--assume-old= -O,--output-sync? -p,--print-data-base -q,--question -r,--no-builtin-rules
        -R,--no-builtin-variables -s,--silent,--quiet --no-silent -S,--no-keep-going,--stop -t,--touch --trace
        -v,--version -w,--print-directory --no-print-directory -W,--what-if,--new-file,--assume-new=
        --warn-undefined-variables --shuffle? -h,--help
        """,
    "dd": "--help --version",
    "mkfs": "-t,--type= -V,--verbose -v -c -l= -L= -U= -n -F -f -q -b= -m= -O= -E= -N= -i= -I=",
}

_NET: Final = {
    "curl": """
        -d,--data=>request=POST --data-ascii=>data,request=POST --data-binary=>data,request=POST
        --data-raw=>data,request=POST --data-urlencode=>data,request=POST --json=>data,request=POST
        -F,--form=>request=POST --form-string=>form,request=POST -T,--upload-file=>request=PUT
        -I,--head>request=HEAD -X,--request= -K,--config=! -o,--output= -O,--remote-name
        --remote-name-all>remote-name -J,--remote-header-name -k,--insecure -L,--location
        --location-trusted>location -H,--header= -u,--user= -b,--cookie= -c,--cookie-jar= -A,--user-agent=
        -e,--referer= -x,--proxy= -U,--proxy-user= -m,--max-time= --connect-timeout= --retry= --retry-delay=
        --retry-max-time= -w,--write-out= -D,--dump-header= -E,--cert= --key= --cacert= --capath= -C,--continue-at=
        -r,--range= -Q,--quote= -y,--speed-time= -Y,--speed-limit= -z,--time-cond= -P,--ftp-port=
        -t,--telnet-option= -G,--get -s,--silent -S,--show-error -f,--fail --fail-with-body -v,--verbose
        -i,--include -a,--append -g,--globoff -j,--junk-session-cookies -l,--list-only -n,--netrc -N,--no-buffer
        -p,--proxytunnel -q,--disable -R,--remote-time -Z,--parallel -B,--use-ascii -0,--http1.0 -1,--tlsv1
        -2,--sslv2 -3,--sslv3 -4,--ipv4 -6,--ipv6 -#,--progress-bar -M,--manual -V,--version -h,--help --compressed
        --url= --resolve= --limit-rate= --max-redirs= --create-dirs --output-dir= --http1.1 --http2 --tlsv1.2
        --tlsv1.3 --no-progress-meter
        """,
    "wget": """
        -e,--execute=! --config=! -i,--input-file= -O,--output-document= -o,--output-file= -a,--append-output=
        -P,--directory-prefix= --post-data=>method=POST --post-file=>method=POST,post-data --method= --body-data=
        --body-file=>body-data --header= --user= --password= --http-user= --http-password= -U,--user-agent=
        --referer= --load-cookies= --save-cookies= --no-check-certificate -r,--recursive -m,--mirror>recursive
        -l,--level= -k,--convert-links -p,--page-requisites -A,--accept= -R,--reject= -D,--domains= -H,--span-hosts
        -L,--relative -I,--include-directories= -X,--exclude-directories= -n? -q,--quiet -v,--verbose -d,--debug
        -b,--background -c,--continue -N,--timestamping -S,--server-response --spider -T,--timeout= -t,--tries=
        -w,--wait= -Q,--quota= -4,--inet4-only -6,--inet6-only -x,--force-directories -E,--adjust-extension
        -B,--base= -F,--force-html -K,--backup-converted -V,--version -h,--help --show-progress --progress=
        --use-askpass=!
        """,
    "ssh": """
        -B= -b= -c= -D= -E= -e= -F=! -I= -i= -J= -L= -l= -m= -O= -o=! -P= -p= -Q= -R= -S= -W= -w= -4 -6 -A -a -C -f
        -G -g -K -k -M -N -n -q -s -T -t -V -v -X -x -Y -y
        """,
    "sudo": """
        -A,--askpass -b,--background -B,--bell -C,--close-from= -D,--chdir= -E,--preserve-env? -e,--edit -g,--group=
        -H,--set-home -h,--host= -i,--login -K,--remove-timestamp -k,--reset-timestamp -l,--list
        -n,--non-interactive -P,--preserve-groups -p,--prompt= -R,--chroot= -r,--role= -S,--stdin -s,--shell
        -T,--command-timeout= -t,--type= -U,--other-user= -u,--user= -V,--version -v,--validate
        """,
}

_NPM_OPTIONS: Final = """
    -g,--global -L,--location=~global -S,--save -D,--save-dev -E,--save-exact -O,--save-optional -B,--save-bundle
    -P,--save-prod --save-peer -C,--prefix= -w,--workspace= -ws,--workspaces -iwr,--include-workspace-root
    -f,--force -y,--yes -n,--no,--no-yes -a,--all -c,--call= -p,--parseable -l,--long -m,--message= -d -dd -ddd
    -q,--quiet -s,--silent --verbose --loglevel= --access= --tag= --otp= --dry-run --registry,--reg= --userconfig=!
    --globalconfig=! --ignore-scripts --legacy-peer-deps --strict-peer-deps --omit= --include= --production --only=
    --no-audit --audit --no-fund --fund --package-lock-only --no-package-lock --package-lock --prefer-offline
    --offline --provenance --json --scope= --if-present --package= --script-shell=! --cache= --color --progress
    -v,--version -h,-H,--usage,--help
    """
_PACKAGES: Final = {
    "npm": _NPM_OPTIONS,
    "npm install": _NPM_OPTIONS,
    "npm uninstall": _NPM_OPTIONS,
    "npm publish": _NPM_OPTIONS,
    "npm unpublish": _NPM_OPTIONS,
    "npm ci": _NPM_OPTIONS,
    "npm run": _NPM_OPTIONS,
    "npm update": _NPM_OPTIONS,
    "pnpm": """
        -r,--recursive -C,--dir= -w,--workspace-root -F,--filter= --color --reporter= --loglevel= --silent,-s
        --stream --aggregate-output
        """,
    "pnpm publish": """
        -r,--recursive -F,--filter= --access= --tag= --dry-run --force --no-git-checks --publish-branch= --otp=
        --json --provenance
        """,
    "pnpm install": """
        -r,--recursive -F,--filter= -C,--dir= -w,--workspace-root -P,--prod,--save-prod,--production
        -D,--dev,--save-dev -O,--optional,--save-optional -E,--save-exact --save-peer -g,--global --frozen-lockfile
        --no-frozen-lockfile --offline --prefer-offline --ignore-scripts --force -f --lockfile-only --fix-lockfile
        --registry= --reporter= --silent,-s
        """,
    "yarn": "--cwd= --silent,-s --verbose --json --offline --non-interactive --use-yarnrc=!",
    "yarn publish": """
        --access= --tag= --new-version= --major --minor --patch --message= --registry= --otp= -n,--dry-run
        --tolerate-republish
        """,
    "yarn install": """
        -D,--dev -P,--peer -O,--optional -E,--exact -T,--tilde -C,--caret -W,--ignore-workspace-root-check
        -A,--audit --force --flat --frozen-lockfile --immutable --no-lockfile --production --prod --ignore-scripts
        --ignore-engines --registry= --cwd= --json
        """,
    "pip": """
        --python= -v,--verbose -q,--quiet --isolated --require-virtualenv --log= --no-input --proxy=
        --disable-pip-version-check --no-color
        """,
    "pip install": """
        -r,--requirement=! -c,--constraint= --no-deps --pre -e,--editable= --dry-run -t,--target= --platform=
        --python-version= --implementation= --abi= --user --root= --prefix= --src= -U,--upgrade --upgrade-strategy=
        --force-reinstall -I,--ignore-installed --ignore-requires-python --no-build-isolation --use-pep517
        --check-build-dependencies --break-system-packages -C,--config-settings= --global-option= --compile
        --no-compile --no-warn-script-location --no-warn-conflicts --no-binary= --only-binary= --prefer-binary
        --require-hashes --progress-bar= --root-user-action= --report= --no-clean --group=!
        -i,--index-url,--pypi-url= --extra-index-url= --no-index -f,--find-links= -v,--verbose -q,--quiet --log=
        --no-input --proxy= --retries= --timeout= --trusted-host= --cert= --cache-dir= --no-cache-dir
        --disable-pip-version-check --no-color --isolated --require-virtualenv --python=
        """,
    "pip uninstall": "-r,--requirement=! -y,--yes --root-user-action= --break-system-packages -v,--verbose -q,--quiet",
}

_CONTAINER: Final = """
    -a,--attach= -c,--cpu-shares= --cap-add= --cap-drop= -d,--detach --device= --dns= --entrypoint= -e,--env=
    --env-file= --gpus= -h,--hostname= -i,--interactive --init --ipc= -l,--label= --link= -m,--memory= --cpus=
    --mount=~volume,v --name= --network,--net= --pid= --platform= --privileged -p,--publish= -P,--publish-all
    --pull= -q,--quiet --read-only --restart= --rm --security-opt= --shm-size= --tmpfs= -t,--tty --ulimit=
    -u,--user= --userns= -v,--volume= --volumes-from=~volume -w,--workdir=
    """
_KUBERNETES: Final = """
    -n,--namespace= --context= --cluster= --kubeconfig= --user= -s,--server= --token= --as= --as-group=
    --request-timeout= --insecure-skip-tls-verify --password= --username= -v,--v= --certificate-authority=
    --client-certificate= --client-key=
    """
_TERRAFORM: Final = """
    -auto-approve -destroy -var= -var-file= -target= -replace= -lock= -lock-timeout= -input= -parallelism= -refresh=
    -refresh-only -state= -state-out= -backup= -no-color -compact-warnings -json -out= -detailed-exitcode
    """
_OPERATIONS: Final = {
    "docker": """
        --config=! -c,--context= -D,--debug -H,--host= -l,--log-level= --tls --tlscacert= --tlscert= --tlskey=
        --tlsverify -v,--version
        """,
    "docker run": _CONTAINER,
    "docker create": _CONTAINER,
    "docker exec": """
        -d,--detach --detach-keys= -e,--env= --env-file= -i,--interactive --privileged -t,--tty -u,--user=
        -w,--workdir=
        """,
    "docker rm": "-f,--force -l,--link -v,--volumes",
    "docker image rm": "-f,--force --no-prune --platform=",
    "docker system prune": "-a,--all --filter= -f,--force --volumes",
    "docker volume rm": "-f,--force",
    "docker push": "-a,--all-tags --disable-content-trust --platform= -q,--quiet",
    "docker compose": """
        -f,--file=! -p,--project-name= --profile= --env-file= --project-directory= --ansi= --progress=
        --compatibility --parallel= --all-resources
        """,
    "docker compose down": "-v,--volumes --rmi= --remove-orphans -t,--timeout= --dry-run -f,--file=!",
    "kubectl": _KUBERNETES,
    "kubectl delete": f"""
        --all! -A,--all-namespaces! --cascade? --dry-run? --field-selector=! -f,--filename=! --force --grace-period=
        --ignore-not-found -i,--interactive --now -k,--kustomize=! -o,--output= --raw= -R,--recursive -l,--selector=!
        --timeout= --wait {_KUBERNETES}
        """,
    "terraform": "-chdir= -help -version",
    "terraform apply": _TERRAFORM,
    "terraform plan": _TERRAFORM,
}

_ONE_DASH: Final = frozenset(["npm", "terraform", "find"])
_STOPS: Final = frozenset(["ssh", "sudo", "docker run", "docker create", "docker exec"])
_OPERANDS: Final = {
    "git push": "refspecs",
    "chmod": "modes",
    "ssh": "hosts",
    "kubectl delete": "resources",
    "npm install": "packages",
    "npm uninstall": "packages",
    "pnpm install": "packages",
    "yarn install": "packages",
    "pip install": "packages",
    "pip uninstall": "packages",
    "docker run": "images",
}

_TABLE: Final = {**_GIT, **_FILES, **_NET, **_PACKAGES, **_OPERATIONS}


@cache
def grammar_of(name: str) -> Grammar | None:
    """The grammar of a program (`rm`) or a subcommand (`git push`), if it is known. Read when it is first needed."""
    if name not in _TABLE:
        return None
    one_dash = name.partition(" ")[0] in _ONE_DASH
    return Grammar(_options(_TABLE[name]), one_dash, name in _STOPS, _OPERANDS.get(name, ""))


WITH_SUBCOMMANDS: Final = frozenset(name.partition(" ")[0] for name in _TABLE if " " in name)
GROUPS: Final = frozenset(name.rpartition(" ")[0] for name in _TABLE if name.count(" ") == 2) | frozenset(
    ["docker container", "docker image", "docker volume", "yarn npm"]
)
"""Subcommands that have subcommands."""


def _pairs(text: str) -> dict[str, tuple[str, ...]]:
    lines = (line.split("=", 1) for line in text.strip().splitlines())
    return {alias.strip(): tuple(words.split()) for names, words in lines for alias in names.split(",")}


PROGRAMS: Final = _pairs(
    """
    docker-compose = docker compose
    gmake, bmake = make
    grm = rm
    gsed = sed
    gtar, bsdtar = tar
    gfind = find
    gchmod = chmod
    gchown, chgrp = chown
    gdd = dd
    mke2fs, newfs = mkfs
    tofu = terraform
    """
)
"""Other names of programs; also git-push, mkfs.ext4 and pip3.12."""

SUBCOMMANDS: Final = _pairs(
    """
    git send-pack, git http-push = push
    npm i, npm in, npm ins, npm inst, npm insta, npm instal, npm isnt, npm isnta, npm isntal, npm isntall, npm add = install
    npm it, npm install-test = install
    npm un, npm unlink, npm remove, npm rm, npm r = uninstall
    npm clean-install, npm ic, npm install-clean, npm isntall-clean, npm cit, npm sit, npm install-ci-test = ci
    npm run-script, npm rum, npm urn = run
    npm u, npm up, npm upgrade, npm udpate = update
    pnpm i, pnpm add = install
    pnpm un, pnpm uninstall, pnpm rm = remove
    yarn add = install
    yarn npm publish = publish
    docker container run = run
    docker container create = create
    docker container exec = exec
    docker container rm, docker container remove, docker remove = rm
    docker rmi, docker image remove = image rm
    docker volume remove = volume rm
    docker image push = push
    terraform destroy = apply -destroy
    """
)
"""What a subcommand is short for."""

SUBCOMMANDS_OF_NPM: Final = _words(" ".join(key[4:] for key in (*_TABLE, *SUBCOMMANDS) if key.startswith("npm ")))

RESOURCES: Final = _pairs(
    """
    ns, namespaces = namespace
    po, pods = pod
    deploy, deployments, deployment.apps = deployment
    svc, services = service
    no, nodes = node
    sts, statefulsets = statefulset
    ds, daemonsets = daemonset
    rs, replicasets = replicaset
    cm, configmaps = configmap
    secrets = secret
    pv, persistentvolumes = persistentvolume
    pvc, persistentvolumeclaims = persistentvolumeclaim
    ing, ingresses = ingress
    jobs = job
    cj, cronjobs = cronjob
    sa, serviceaccounts = serviceaccount
    crd, crds, customresourcedefinitions = customresourcedefinition
    """
)

VARIABLES: Final = {"terraform": "TF_", "kubectl": "KUBE"}
"""How the variables begin that tell a program what to do, where that is not its own name."""

HARMLESS_GIT_SETTINGS: Final = frozenset(["color", "advice", "user", "author", "committer", "column", "log", "diff"])
"""Sections of `git -c section.key=value` that change nothing that a rule is about."""

GIT_COMMANDS: Final = _words(
    """
    add am annotate apply archive backfill bisect blame branch bugreport bundle cat-file check-attr check-ignore
    check-mailmap check-ref-format checkout checkout-index cherry cherry-pick citool clean clone column commit
    commit-graph commit-tree config count-objects credential credential-cache credential-store daemon describe
    diagnose diff diff-files diff-index diff-pairs diff-tree difftool fast-export fast-import fetch fetch-pack
    filter-branch fmt-merge-msg for-each-ref for-each-repo format-patch fsck gc get-tar-commit-id grep gui gitk
    hash-object help hook http-backend http-fetch http-push imap-send index-pack init init-db instaweb
    interpret-trailers last-modified lfs log ls-files ls-remote ls-tree mailinfo mailsplit maintenance merge
    merge-base merge-file merge-index merge-octopus merge-one-file merge-ours merge-recursive merge-resolve
    merge-subtree merge-tree mergetool mktag mktree multi-pack-index mv name-rev notes pack-objects pack-redundant
    pack-refs patch-id pickaxe prune prune-packed pull push quiltimport range-diff read-tree rebase receive-pack
    reflog refs remote repack replace replay request-pull rerere reset restore rev-list rev-parse revert rm
    send-email send-pack shell shortlog show show-branch show-index show-ref sparse-checkout stage stash status
    stripspace submodule subtree switch symbolic-ref tag unpack-file unpack-objects update-index update-ref
    update-server-info upload-archive upload-pack var verify-commit verify-pack verify-tag version whatchanged
    worktree write-tree
    """
)
"""What `git WORD` means whatever is configured; any other word may be somebody's alias for anything."""
