# For a tap. `make dist` writes dist/helmsman.rb with the address and the checksum of the release. The formula of a tap may
# download dependencies while it installs; constraints.txt of the sdist has their versions.
class Helmsman < Formula
  include Language::Python::Virtualenv

  desc "Steer coding agents: start work, answer their questions, bring changes home"
  homepage "https://github.com/codex-helmsman/codex-helmsman"
  url "@URL@"
  version "@VERSION@"
  sha256 "@SHA256@"
  license "Apache-2.0"

  depends_on "git"
  depends_on "python@3.13"

  def install
    venv = virtualenv_create(libexec, "python3.13")
    system venv.root/"bin/python", "-m", "ensurepip"
    system venv.root/"bin/python", "-m", "pip", "install", "--constraint", "constraints.txt", ".[codex]"
    bin.install_symlink libexec/"bin/helmsman"
  end

  service do
    run [opt_bin/"helmsman", "hub", "run"]
    keep_alive true
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/helmsman --version")
    system bin/"helmsman", "demo"
  end
end
