// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/examples/kubelet/internal/shim"
	"github.com/kubewright/kubewright/internal/record"
	"github.com/kubewright/kubewright/podsync/crilog"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// An Instance is a run of a container, as the server of the node sees it.
type Instance struct {
	dir, log, work string
	pid            int
	running        bool
	inputOnce      bool // its input ends with the first client that attaches
}

// Find returns the newest run of a container, or the run before it. Its errors
// have HTTP statuses.
func (r *Runtime) Find(pod types.UID, name string, previous bool) (Instance, error) {
	entries, err := os.ReadDir(r.cfg.Root.containers(string(pod), name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Instance{}, err
	}
	var attempts []int
	for _, entry := range entries {
		if n, err := strconv.Atoi(entry.Name()); err == nil {
			attempts = append(attempts, n)
		}
	}
	slices.Sort(attempts)
	if previous && len(attempts) > 0 {
		attempts = attempts[:len(attempts)-1]
	}
	if len(attempts) == 0 && previous {
		return Instance{}, apierrors.NewBadRequest("previous terminated container " + name + " not found")
	}
	if len(attempts) == 0 {
		return Instance{}, apierrors.NewBadRequest("container " + name + " is waiting to start")
	}
	id := podruntime.ContainerID{Pod: pod, Name: name, Attempt: attempts[len(attempts)-1]}
	found := Instance{dir: r.dir(id), log: r.log(id)}
	st, err := shim.Read(found.dir)
	if err != nil || st.Running == nil || st.Exit != nil {
		return found, err
	}
	var rec runRecord
	if _, err := record.Read(filepath.Join(found.dir, "run.json"), &rec); err != nil {
		return found, err
	}
	found.work, found.inputOnce, found.running, found.pid = rec.Dir, rec.StdinOnce, true, st.Running.PID
	return found, nil
}

// Log opens the output of the run.
func (i Instance) Log(opts crilog.Options) (*crilog.Reader, error) {
	log, err := crilog.Open(i.log, opts)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, apierrors.NewBadRequest("the container has not written a log yet")
	}
	return log, err
}

// Over reports whether the run has ended.
func (i Instance) Over() bool {
	status, err := shim.Read(i.dir)
	if err != nil {
		return false // the disk may recover
	}
	if status.Exit == nil {
		_, err = os.Stat(i.dir)
	}
	return status.Exit != nil || errors.Is(err, fs.ErrNotExist)
}

// An IO holds the streams of a command. Nil streams are /dev/null.
type IO struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Resize delivers the sizes of a terminal; nil: no terminal.
	Resize <-chan shim.Size
}

// pollRun is the time between two looks at a run. pollAttached is shorter, because a
// person waits for the echo of each key.
const (
	pollRun      = 100 * time.Millisecond
	pollAttached = 10 * time.Millisecond
)

// Attach connects the streams to the command of the run until the run ends, ctx is
// done, or the client takes no more output. Output from before is left out.
func (i Instance) Attach(ctx context.Context, s IO) error {
	if !i.running {
		return apierrors.NewBadRequest("the container is not running")
	}
	log, err := i.Log(crilog.Options{Follow: true, Poll: pollAttached, Ended: i.Over})
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	defer context.AfterFunc(ctx, func() { _ = log.Close() })()
	if s.Stdin != nil {
		input, err := shim.Input(i.dir)
		if errors.Is(err, fs.ErrNotExist) {
			return apierrors.NewBadRequest("the container has no input: stdin is false in its spec, or stdinOnce is true and its input has ended")
		}
		if err != nil {
			return err
		}
		defer func() { _ = input.Close() }() // ends a Write that waits for the command
		go func() {
			_, _ = io.Copy(input, s.Stdin)
			if i.inputOnce {
				_ = errors.Join(shim.EndInput(i.dir), input.Close())
			}
		}()
	}
	if s.Resize != nil {
		go func() {
			for size := range s.Resize {
				_ = shim.Resize(i.dir, size)
			}
		}()
	}
	for {
		entry, err := log.Next()
		if errors.Is(err, io.EOF) || err != nil && ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		text := entry.Text
		if entry.Full {
			text = append(text[:len(text):len(text)], '\n')
		}
		to := s.Stdout
		if entry.Stream == crilog.Stderr {
			to = s.Stderr
		}
		if to == nil {
			continue
		}
		if _, err := to.Write(text); err != nil {
			return err
		}
	}
}

// Exec runs a command beside the run, with its environment, until the command or
// the run ends, or ctx is done.
func (i Instance) Exec(ctx context.Context, command []string, s IO) error {
	if !i.running {
		return apierrors.NewBadRequest("the container is not running")
	}
	env, err := shim.Environ(i.dir, i.pid)
	if err != nil {
		return err
	}
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(running, command[0], command[1:]...)
	cmd.Dir, cmd.Env = i.work, env
	if path, err := lookPath(command[0], env); err == nil {
		cmd.Path, cmd.Err = path, nil
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for !i.Over() {
			select {
			case <-time.After(pollRun):
			case <-ended:
				return
			}
		}
		cancel()
	}()
	// The kernel sends Pdeathsig when the thread that forked ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if s.Resize != nil {
		return runInTerminal(ctx, cmd, s)
	}
	if s.Stdin != nil {
		// Not cmd.Stdin: Wait would wait for input that never comes.
		in, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(in, s.Stdin)
			_ = in.Close()
		}()
	}
	out := newOutput()
	var ends []*os.File // of the command
	defer func() {
		for _, end := range ends {
			_ = end.Close()
		}
	}()
	pipe := func(to io.Writer) (*os.File, error) {
		from, end, err := os.Pipe()
		if err == nil {
			ends = append(ends, end)
			out.copy(to, from)
		}
		return end, err
	}
	if s.Stdout != nil {
		if cmd.Stdout, err = pipe(s.Stdout); err != nil {
			return err
		}
	}
	switch {
	case s.Stderr == nil:
	case s.Stderr == s.Stdout:
		cmd.Stderr = cmd.Stdout // which keeps the order
	default:
		if cmd.Stderr, err = pipe(s.Stderr); err != nil {
			return err
		}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	for _, end := range ends {
		_ = end.Close() // the command has copies
	}
	err = cmd.Wait()
	if rest := out.wait(ctx); err == nil {
		err = rest
	}
	return err
}

// leftOpen is the time for which the output of a command that has ended must be quiet:
// processes that the command leaves behind may keep it open.
const leftOpen = time.Second

// An output is what a command writes to its client. The client may read as slowly as it
// likes.
type output struct {
	over   chan struct{} // closed when the command has ended
	from   []*os.File
	copied chan error // has room for a result for each of from
}

func newOutput() *output { return &output{over: make(chan struct{}), copied: make(chan error, 2)} }

// copy copies a pipe to its end, or until it is quiet after the command, and closes it.
func (o *output) copy(to io.Writer, from *os.File) {
	o.copyUntil(to, from, from.Close)
}

// copyTerminal is copy for a terminal, which stays open: a command that closes its end for a while
// goes on, and would be hung up on.
func (o *output) copyTerminal(to io.Writer, from *os.File) {
	o.copyUntil(to, from, func() error { return nil })
}

func (o *output) copyUntil(to io.Writer, from *os.File, end func() error) {
	o.from = append(o.from, from)
	go func() {
		err := o.drain(to, from)
		_ = end()
		o.copied <- err
	}()
}

func (o *output) drain(to io.Writer, from *os.File) error {
	buf := make([]byte, 32<<10)
	for quiet := false; ; {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return err
			}
		}
		late := errors.Is(err, os.ErrDeadlineExceeded)
		if late && quiet || err != nil && !late { // a terminal ends with EIO
			return nil
		}
		quiet = late // once more: the deadline may have passed before Read began
		select {
		case <-o.over:
			_ = from.SetReadDeadline(time.Now().Add(leftOpen))
		default:
		}
	}
}

// wait waits for the rest of the output of a command that has ended, unless ctx is done.
func (o *output) wait(ctx context.Context) error {
	close(o.over)
	for _, from := range o.from {
		_ = from.SetReadDeadline(time.Unix(1, 0)) // wakes Read
	}
	var errs []error
	for range o.from {
		select {
		case err := <-o.copied:
			errs = append(errs, err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errors.Join(errs...)
}

// lookPath finds a program in the container's PATH.
func lookPath(program string, env []string) (string, error) {
	if strings.Contains(program, "/") {
		return program, nil
	}
	for _, v := range env {
		if path, ok := strings.CutPrefix(v, "PATH="); ok {
			for _, dir := range filepath.SplitList(path) {
				if found, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
					return found, nil
				}
			}
		}
	}
	return "", exec.ErrNotFound
}

// runInTerminal runs a command with a terminal of its own.
func runInTerminal(ctx context.Context, cmd *exec.Cmd, s IO) error {
	master, slave, err := shim.OpenTerminal()
	if err != nil {
		return err
	}
	defer func() { _ = master.Close() }()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr.Setctty = true
	if !slices.ContainsFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, "TERM=") }) {
		cmd.Env = append(cmd.Env, "TERM=xterm")
	}
	if err := errors.Join(cmd.Start(), slave.Close()); err != nil {
		return err
	}
	go func() {
		for size := range s.Resize {
			_ = shim.ResizeTerminal(master, size.Rows, size.Columns)
		}
	}()
	if s.Stdin != nil {
		go func() { _, _ = io.Copy(master, s.Stdin) }()
	}
	out := newOutput()
	if s.Stdout != nil {
		out.copyTerminal(s.Stdout, master)
	}
	err = cmd.Wait()
	if rest := out.wait(ctx); err == nil {
		err = rest
	}
	return err
}

// Usage is the resource usage of a container.
type Usage struct {
	CPU    time.Duration // since it started, without processes that were not waited for
	Memory uint64        // resident bytes
}

// clockTick is the unit of times in /proc/PID/stat on every Linux.
const clockTick = 10 * time.Millisecond

// Usage returns the usage of all containers that run, by pod and name.
func (r *Runtime) Usage() (map[types.UID]map[string]Usage, error) {
	pods := filepath.Join(r.cfg.Root.Path(), "pods")
	runs, err := shim.Runs(pods)
	if err != nil {
		return nil, err
	}
	usage := make(map[types.UID]map[string]Usage)
	page := uint64(os.Getpagesize())
	for pid, run := range runs {
		parts := strings.Split(strings.TrimPrefix(run, pods+"/"), "/") // UID/containers/NAME/N
		if len(parts) < 4 {
			continue
		}
		pod := types.UID(parts[0])
		if usage[pod] == nil {
			usage[pod] = make(map[string]Usage)
		}
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		u := usage[pod][parts[2]]
		u.CPU += cpuTime(dir)
		u.Memory += resident(dir) * page
		usage[pod][parts[2]] = u
	}
	return usage, nil
}

// cpuTime returns the CPU time of a process and of those it has waited for.
func cpuTime(dir string) (sum time.Duration) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return 0
	}
	// The name, in parentheses, may hold anything.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	for i := 11; i <= 14 && i < len(fields); i++ { // utime stime cutime cstime
		n, _ := strconv.ParseInt(fields[i], 10, 64)
		sum += time.Duration(n) * clockTick
	}
	return sum
}

// resident returns the resident pages of a process.
func resident(dir string) uint64 {
	statm, err := os.ReadFile(filepath.Join(dir, "statm"))
	if err != nil {
		return 0
	}
	if fields := strings.Fields(string(statm)); len(fields) > 1 {
		n, _ := strconv.ParseUint(fields[1], 10, 64)
		return n
	}
	return 0
}
