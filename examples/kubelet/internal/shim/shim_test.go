// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shim

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubewright/kubewright/podsync/crilog"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

// far is a deadline that no test waits for.
func far() time.Time { return time.Now().Add(time.Hour) }

// rig is a folder for one run and the pipes by which the command talks to the
// test.
type rig struct {
	*testing.T
	dir string
}

func newRig(t *testing.T) *rig {
	r := &rig{t, filepath.Join(t.TempDir(), "run")}
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // whatever the test has found
		if err := sweep(context.Background(), r.dir); err != nil {
			t.Error(err)
		}
	})
	return r
}

// command returns a shell command that can write to the pipe $PIPE.
func (r *rig) command(script string) Command {
	r.Helper()
	pipe := filepath.Join(filepath.Dir(r.dir), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		r.Fatal(err)
	}
	return Command{
		Args: []string{"sh", "-c", script},
		Env:  []string{"PATH=" + os.Getenv("PATH"), "PIPE=" + pipe},
		Dir:  r.TempDir(),
		Log:  filepath.Join(filepath.Dir(r.dir), "log"),
	}
}

// hear waits for the command to write to its pipe, and returns the text.
func (r *rig) hear() string {
	r.Helper()
	data, err := os.ReadFile(filepath.Join(filepath.Dir(r.dir), "pipe"))
	if err != nil {
		r.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func (r *rig) hearPID() int {
	r.Helper()
	pid, err := strconv.Atoi(r.hear())
	if err != nil {
		r.Fatal(err)
	}
	return pid
}

func (r *rig) start(c Command) *Run {
	r.Helper()
	run, err := Start(r.dir, c)
	if err != nil {
		r.Fatal(err)
	}
	return run
}

func (r *rig) follow(run *Run) Status {
	r.Helper()
	if err := run.Follow(r.Context(), func() {}); err != nil {
		r.Fatal(err)
	}
	status, err := Read(r.dir)
	if err != nil {
		r.Fatal(err)
	}
	return status
}

func (r *rig) exit(run *Run) Exit {
	r.Helper()
	status := r.follow(run)
	if status.Exit == nil {
		output, _ := os.ReadFile(filepath.Join(r.dir, outputFile))
		r.Fatalf("the run has no exit; the shim printed %q", output)
	}
	return *status.Exit
}

// gone checks that a process does not run.
func (r *rig) gone(pid int) {
	r.Helper()
	if st, ok := readStat(pid); ok && !st.dead() {
		r.Errorf("process %d still runs: %+v", pid, st)
	}
}

// shimOf returns the parent of a process.
func (r *rig) shimOf(pid int) int {
	r.Helper()
	st, ok := readStat(pid)
	if !ok {
		r.Fatalf("there is no process %d", pid)
	}
	return st.parent
}

func TestExit(t *testing.T) {
	for name, tc := range map[string]struct {
		args   []string
		code   int32
		signal int32
		reason string
	}{
		"success":    {[]string{"sh", "-c", "exit 0"}, 0, 0, ReasonCompleted},
		"failure":    {[]string{"sh", "-c", "exit 3"}, 3, 0, ReasonError},
		"signal":     {[]string{"sh", "-c", "kill -9 $$"}, 137, 9, ReasonError},
		"no program": {[]string{"kubewright-no-such-program"}, 128, 0, ReasonStartError},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			c := r.command("")
			c.Args = tc.args
			e := r.exit(r.start(c))
			if e.Code != tc.code || e.Signal != tc.signal || e.Reason != tc.reason {
				t.Errorf("exit %+v, want code %d, signal %d, reason %s", e, tc.code, tc.signal, tc.reason)
			}
			if e.StartedAt.IsZero() || e.FinishedAt.Before(e.StartedAt) {
				t.Errorf("it ran from %v to %v", e.StartedAt, e.FinishedAt)
			}
		})
	}
}

func TestCommandHasItsEnvironmentAndNothingElse(t *testing.T) {
	r := newRig(t)
	c := r.command(`echo to stdout; echo to stderr >&2; env; ls /proc/self/fd | wc -l; pwd`)
	r.exit(r.start(c))
	log, err := os.ReadFile(c.Log)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{" stdout F to stdout\n", " stderr F to stderr\n", "PIPE=", Variable + "=" + r.dir, c.Dir, " stdout F 4\n"} {
		// Four descriptors: 0, 1, 2 and that by which ls reads the folder.
		if !strings.Contains(string(log), want) {
			t.Errorf("the log has no %q:\n%s", want, log)
		}
	}
	if strings.Contains(string(log), "GOMAXPROCS") {
		t.Error("the command has the shim's environment")
	}
}

func TestPinning(t *testing.T) {
	r := newRig(t)
	c := r.command("grep Cpus_allowed_list /proc/self/status")
	c.CPUs = []int{0}
	r.exit(r.start(c))
	if log, err := os.ReadFile(c.Log); err != nil || !strings.HasSuffix(string(log), " stdout F Cpus_allowed_list:\t0\n") {
		t.Errorf("the command runs on %q, %v", log, err)
	}
	r = newRig(t)
	c = r.command("true")
	c.CPUs = []int{1000}
	if e := r.exit(r.start(c)); e.Reason != ReasonStartError || !strings.Contains(e.Message, "CPUs [1000]") {
		t.Errorf("on a CPU that there isn't: %+v", e)
	}
}

// A daemon leaves session and process group, and its parent dies.
const daemon = `setsid sh -c 'setsid sh -c "echo \$\$ > \$PIPE; exec sleep 1000" & exec sleep 1000' & `

func TestNothingIsLeft(t *testing.T) {
	t.Run("after the end", func(t *testing.T) {
		r := newRig(t)
		run := r.start(r.command(daemon + `wait; exit 0`))
		pid := r.hearPID()
		if err := run.Stop(far()); err != nil { // ends sh; the rest is not asked
			t.Fatal(err)
		}
		r.exit(run)
		r.gone(pid)
	})
	t.Run("after the deadline", func(t *testing.T) {
		r := newRig(t)
		run := r.start(r.command(`trap "" TERM; ` + daemon + `while true; do wait; done`))
		pid := r.hearPID()
		if err := run.Stop(time.Now()); err != nil {
			t.Fatal(err)
		}
		if e := r.exit(run); e.Code != 137 {
			t.Errorf("exit code %d, want 137", e.Code)
		}
		r.gone(pid)
	})
	t.Run("when the shim is killed", func(t *testing.T) {
		r := newRig(t)
		run := r.start(r.command(daemon + `while true; do wait; done`))
		pid := r.hearPID()
		// It tells once that the command runs, perhaps after the command has.
		if _, err := run.alive.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		status, err := Read(r.dir)
		if err != nil || status.Running == nil {
			t.Fatalf("%+v, %v", status, err)
		}
		if err := syscall.Kill(r.shimOf(status.Running.PID), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if e := r.exit(run); e.Code != 137 || e.Reason != ReasonUnknown || !e.StartedAt.Equal(status.Running.StartedAt) {
			t.Errorf("exit %+v, want an unknown one", e)
		}
		r.gone(pid)
		r.gone(status.Running.PID)
	})
}

func TestStopIsGraceful(t *testing.T) {
	r := newRig(t)
	run := r.start(r.command(`trap "exit 7" TERM; echo > $PIPE; while true; do sleep 1000 & wait; done`))
	r.hear()
	if err := run.Stop(far()); err != nil {
		t.Fatal(err)
	}
	if e := r.exit(run); e.Code != 7 {
		t.Errorf("exit code %d, want that of the trap, 7", e.Code)
	}
	if err := run.Stop(far()); err != nil {
		t.Errorf("Stop after the end: %v", err)
	}
}

func TestDeadlineCanBecomeEarlier(t *testing.T) {
	r := newRig(t)
	run := r.start(r.command(`trap "echo > $PIPE" TERM; echo > $PIPE; while true; do sleep 1000 & wait; done`))
	r.hear()
	if err := run.Stop(far()); err != nil {
		t.Fatal(err)
	}
	r.hear() // it was asked, and goes on
	if err := run.Stop(time.Now()); err != nil {
		t.Fatal(err)
	}
	if e := r.exit(run); e.Code != 137 {
		t.Errorf("exit code %d, want 137", e.Code)
	}
}

// block makes writes of a file by the shim fail, as on a full disk, until the
// returned function is called.
func (r *rig) block(file string) (unblock func()) {
	r.Helper()
	path := filepath.Join(r.dir, file+".tmp")
	if err := os.Mkdir(path, 0o700); err != nil {
		r.Fatal(err)
	}
	return func() {
		r.Helper()
		if err := os.Remove(path); err != nil {
			r.Fatal(err)
		}
	}
}

func TestWhatIsKnownOutlivesAFullDisk(t *testing.T) {
	r := newRig(t)
	unblockRunning, unblockExit := r.block(runningFile), r.block(exitFile)
	run := r.start(r.command(`echo $$ > $PIPE; read line < $PIPE; exit 3`))
	pid := r.hearPID()
	if status, err := Read(r.dir); err != nil || !status.MayHaveStarted || status.Running != nil {
		t.Errorf("%+v, %v, want a run that may have started", status, err)
	}
	unblockRunning()
	if _, err := run.alive.Read(make([]byte, 1)); err != nil { // until it tells
		t.Fatal(err)
	}
	if status, err := Read(r.dir); err != nil || status.Running == nil || status.Running.PID != pid {
		t.Errorf("%+v, %v, want one that runs", status, err)
	}
	shim, err := os.FindProcess(r.shimOf(pid))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(r.dir), "pipe"), []byte("end\n"), 0); err != nil {
		t.Fatal(err)
	}
	for st, ok := readStat(pid); ok && !st.dead(); st, ok = readStat(pid) {
		runtime.Gosched()
	}
	if err := shim.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the shim does not wait for the disk: %v", err)
	}
	unblockExit()
	if e := r.exit(run); e.Code != 3 || e.Reason != ReasonError {
		t.Errorf("exit %+v, want code 3", e)
	}
}

func TestStopNeedsNoDisk(t *testing.T) {
	r := newRig(t)
	run := r.start(r.command(`trap "" TERM; echo > $PIPE; while true; do sleep 1000 & wait; done`))
	r.hear()
	if _, err := run.alive.Read(make([]byte, 1)); err != nil { // until it has written that it runs
		t.Fatal(err)
	}
	files := func() (names []string) {
		entries, err := os.ReadDir(r.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	before := files()
	if err := run.Stop(far()); err != nil {
		t.Fatal(err)
	}
	if after := files(); !slices.Equal(before, after) {
		t.Errorf("there were %q, and are %q", before, after)
	}
	if err := run.Stop(time.Now()); err != nil {
		t.Fatal(err)
	}
	r.exit(run)
}

func TestWithoutALogNothingIsStarted(t *testing.T) {
	r := newRig(t)
	c := r.command("true")
	c.Log = filepath.Join(r.dir, "absent", "log")
	if status := r.follow(r.start(c)); status.MayHaveStarted {
		t.Errorf("the run may have started: %+v", status)
	}
}

func TestRunOutlivesItsFollower(t *testing.T) {
	r := newRig(t)
	first := r.start(r.command(`echo $$ > $PIPE; read line < $PIPE; exit $line`))
	r.hear()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := Open(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(r.dir), "pipe"), []byte("5\n"), 0); err != nil {
		t.Fatal(err)
	}
	if e := r.exit(second); e.Code != 5 {
		t.Errorf("exit code %d, want 5", e.Code)
	}
	_ = first.cmd.Wait()
	// A third process finds it, too.
	third, err := Open(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	if e := r.exit(third); e.Code != 5 {
		t.Errorf("exit code %d, want 5", e.Code)
	}
}

func TestBoundCommandEndsWithItsStarter(t *testing.T) {
	r := newRig(t)
	c := r.command(`trap "" TERM; ` + daemon + `while true; do wait; done`)
	c.Bound = true
	run := r.start(c)
	pid := r.hearPID()
	if err := run.stdin.Close(); err != nil { // as the end of the process does
		t.Fatal(err)
	}
	run.stdin = nil
	r.exit(run)
	r.gone(pid)
}

func TestFollowEndsWithItsContext(t *testing.T) {
	r := newRig(t)
	run := r.start(r.command(`echo > $PIPE; exec sleep 1000`))
	r.hear()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run.Follow(ctx, func() {}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Follow returned %v", err)
	}
	second, err := Open(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Stop(time.Now()); err != nil {
		t.Fatal(err)
	}
	r.exit(second)
	_ = run.cmd.Wait()
}

// texts returns the text of a log, and checks its times.
func (r *rig) texts(c Command, began time.Time) string {
	r.Helper()
	log, err := os.ReadFile(c.Log)
	if err != nil {
		r.Fatal(err)
	}
	var text []byte
	last := began
	for line := range bytes.Lines(log) {
		e := crilog.Parse(bytes.TrimSuffix(line, []byte{'\n'}))
		if e.Time.Before(last) || e.Time.After(time.Now()) {
			r.Errorf("%q comes after %s", line, last)
		}
		last = e.Time
		if text = append(text, e.Text...); e.Full {
			text = append(text, '\n')
		}
	}
	return string(text)
}

func TestTheLogHasEveryByteInOrder(t *testing.T) {
	r := newRig(t)
	long := strings.Repeat("0123456789", 5000)
	c := r.command(`printf "%s" "$LONG"; printf "%s\n\n" "$LONG"; printf "no newline"`)
	c.Env = append(c.Env, "LONG="+long)
	began := time.Now()
	r.exit(r.start(c))
	if got, want := r.texts(c, began), long+long+"\n\nno newline"; got != want {
		t.Errorf("%d bytes, want %d", len(got), len(want))
	}
}

func TestAPromptWithoutANewlineIsInTheLogAtOnce(t *testing.T) {
	r := newRig(t)
	c := r.command(`printf "name: "; read name; echo "hello $name"`)
	c.Stdin = true
	began := time.Now()
	run := r.start(c)
	for log := []byte(nil); !bytes.Contains(log, []byte(" stdout P name: ")); runtime.Gosched() {
		log, _ = os.ReadFile(c.Log)
	}
	input, err := Input(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(input, "world\n"); err != nil {
		t.Fatal(err)
	}
	if e := r.exit(run); e.Code != 0 {
		t.Errorf("%+v", e)
	}
	if err := input.Close(); err != nil {
		t.Error(err)
	}
	if got := r.texts(c, began); got != "name: hello world\n" {
		t.Errorf("%q", got)
	}
	if _, err := Input(r.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the input of a run that has ended: %v", err)
	}
}

func TestInputEndsAfterItsBytesAndNotWithItsWriter(t *testing.T) {
	r := newRig(t)
	c := r.command(`echo > $PIPE; cat; echo end`)
	c.Stdin = true
	began := time.Now()
	run := r.start(c)
	r.hear()
	for _, text := range []string{"first\n", "second\n"} {
		input, err := Input(r.dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(input, text); err != nil {
			t.Fatal(err)
		}
		if err := input.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := EndInput(r.dir); err != nil {
		t.Fatal(err)
	}
	r.exit(run)
	if got := r.texts(c, began); got != "first\nsecond\nend\n" {
		t.Errorf("%q", got)
	}
}

func TestWithoutStdinTheInputIsEmpty(t *testing.T) {
	r := newRig(t)
	c := r.command(`echo > $PIPE; cat; echo end; exec sleep 1000`)
	run := r.start(c)
	r.hear()
	if _, err := Input(r.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Input: %v", err)
	}
	if err := Resize(r.dir, Size{1, 1}); err != nil {
		t.Errorf("a size without a terminal: %v", err)
	}
	if err := run.Stop(time.Now()); err != nil {
		t.Fatal(err)
	}
	r.exit(run)
}

// The size and the input reach the command by different ways, in any order, so the
// command doesn't read before it has the size.
func TestATerminalHasInputAndASize(t *testing.T) {
	r := newRig(t)
	c := r.command(`sleep 1000 & trap 'stty size > $PIPE; kill $!' WINCH; tty >&2; echo > $PIPE; wait $!; read -r line; echo got $line`)
	c.Stdin, c.TTY = true, true
	began := time.Now()
	run := r.start(c)
	r.hear()
	if err := Resize(r.dir, Size{Rows: 31, Columns: 77}); err != nil {
		t.Fatal(err)
	}
	input, err := Input(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = input.Close() }()
	if _, err := io.WriteString(input, "a line\n"); err != nil {
		t.Fatal(err)
	}
	if size := r.hear(); size != "31 77" {
		t.Errorf("the terminal is %q", size)
	}
	if e := r.exit(run); e.Code != 0 {
		t.Errorf("%+v", e)
	}
	got := r.texts(c, began)
	if !strings.HasPrefix(got, "/dev/pts/") || !strings.HasSuffix(got, "got a line\r\n") {
		t.Errorf("the terminal showed %q", got)
	}
}

func TestAContainerWithoutACommandFailsWithASentence(t *testing.T) {
	r := newRig(t)
	c := r.command("")
	c.Args = nil
	if e := r.exit(r.start(c)); e.Reason != ReasonStartError || e.Message != "the container has no command, and images are not pulled" {
		t.Errorf("%+v", e)
	}
}

// A full disk is a limit of the file's size here.
func TestAnEntryThatTheDiskCutsOffIsTakenBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	full, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = full.Close() }()
	l := &logger{f: full}
	l.write(crilog.Stdout, []byte("first\n"))
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	info, err := full.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: uint64(info.Size()) + 20, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	l.write(crilog.Stdout, []byte("lost\n"))
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	l.write(crilog.Stdout, []byte("last\n"))
	log, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(log), "\n")
	if len(lines) != 3 || !strings.HasSuffix(lines[0], " stdout F first") || len(lines[1]) != len("2026-01-02T03:04:05.000000000Z stdout F last") || !strings.HasSuffix(lines[1], "Z stdout F last") {
		t.Errorf("%q", lines)
	}
}

func TestParseStat(t *testing.T) {
	const rest = " 12 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 931966 0 0"
	for text, want := range map[string]stat{
		"12 (sh) S 7" + rest:       {"S", 7, "931966"},
		"12 (a) b) (c) Z 8" + rest: {"Z", 8, "931966"},
		"12 (sh) S":                {},
		"":                         {},
		"12 (sh) S x" + rest:       {},
	} {
		if got, ok := parseStat(text); ok != (want != stat{}) || ok && got != want {
			t.Errorf("parseStat(%q) = %+v, %v, want %+v", text, got, ok, want)
		}
	}
	if st, ok := readStat(os.Getpid()); !ok || st.parent != os.Getppid() || st.dead() {
		t.Errorf("of this process: %+v, %v", st, ok)
	}
}
