// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/examples/kubelet/internal/shim"
	"github.com/kubewright/kubewright/internal/record"
	"github.com/kubewright/kubewright/internal/rmtree"
	"github.com/kubewright/kubewright/podsync/crilog"
	"github.com/kubewright/kubewright/podsync/podenv"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// Config configures a Runtime.
type Config struct {
	// Root is the directory of the kubelet, that of podruntime.Config too.
	Root *Root
	// CPUs returns the CPUs that a container has claimed, nil for all. Optional:
	// without it pods with resource claims are rejected.
	CPUs func(ctx context.Context, pod *corev1.Pod, container *corev1.Container) ([]int, error)
}

// A Runtime runs containers as processes. Make it with New.
type Runtime struct {
	cfg Config
	ctx context.Context // of the followers
	end context.CancelFunc
	wg  sync.WaitGroup

	mu      sync.Mutex
	runs    map[podruntime.ContainerID]*run // those that are followed
	ended   map[podruntime.ContainerID]bool // those of which nothing is left
	changed map[types.UID]bool              // not yet reported by Watch
	wake    chan struct{}
}

// A run is a run that is followed until it ends.
type run struct {
	begun  chan struct{} // closed when the command runs or has ended
	over   chan struct{} // closed when nothing of it is left
	once   sync.Once
	ending sync.Once
	late   chan struct{} // closed some time after the command was seen to have ended
}

func (r *run) begin() { r.once.Do(func() { close(r.begun) }) }

// endPatience is the time for which a list waits, once, for the rest of a run whose command has
// ended. It is longer than a sweep takes on a busy machine.
const endPatience = 5 * time.Second

// end returns late, and begins its time.
func (r *run) end() <-chan struct{} {
	r.ending.Do(func() { time.AfterFunc(endPatience, func() { close(r.late) }) })
	return r.late
}

var _ interface {
	podruntime.Runtime
	podruntime.Watcher
	podruntime.Execer
	podruntime.LogTailer
	podruntime.DiskMeter
	podruntime.Checker
	podruntime.PodChecker
} = (*Runtime)(nil)

// New returns a Runtime with the containers of earlier processes in the directory.
// Goroutines of the Runtime have the values of ctx, and end with it or with Close.
func New(ctx context.Context, cfg Config) (*Runtime, error) {
	r := &Runtime{cfg: cfg, runs: map[podruntime.ContainerID]*run{}, ended: map[podruntime.ContainerID]bool{}, changed: map[types.UID]bool{}, wake: make(chan struct{}, 1)}
	// Commands that ran in containers for the last process have ended with it, and what
	// it was removing is removed.
	err := cfg.Root.eachDir("", func(uid, name, dir string) error {
		if strings.HasPrefix(dir, execPrefix) || strings.HasPrefix(dir, removedPrefix) {
			discard(ctx, filepath.Join(cfg.Root.containers(uid, name), dir))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	r.ctx, r.end = context.WithCancel(ctx)
	return r, nil
}

// Close lets go of the containers, which run on.
func (r *Runtime) Close() {
	r.end()
	r.wg.Wait()
}

func (r *Runtime) dir(id podruntime.ContainerID) string {
	return filepath.Join(r.cfg.Root.containers(string(id.Pod), id.Name), strconv.Itoa(id.Attempt))
}

func (r *Runtime) log(id podruntime.ContainerID) string { return r.dir(id) + ".log" }

// listPatience is the time that shims may take in a list of all pods. If one of them hangs, each pod
// behind it that also needs to wait for a shim is listed alone.
const listPatience = 5 * time.Second

// List implements podruntime.Runtime.
func (r *Runtime) List(ctx context.Context, pod types.UID) ([]podruntime.Container, error) {
	var list []podruntime.Container
	unknown, asked := map[types.UID]error{}, ctx
	if pod == "" {
		var cancel context.CancelFunc
		asked, cancel = context.WithTimeout(ctx, listPatience)
		defer cancel()
	}
	err := r.cfg.Root.eachDir(string(pod), func(uid, name, dir string) error {
		attempt, err := strconv.Atoi(dir)
		if err != nil {
			return nil // of a command, or being removed
		}
		c, err := r.container(asked, podruntime.ContainerID{Pod: types.UID(uid), Name: name, Attempt: attempt})
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed in the meantime
		case err != nil:
			unknown[c.ID.Pod] = fmt.Errorf("container %v: %w", c.ID, err)
		default:
			list = append(list, c)
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	if len(unknown) > 0 {
		return list, &podruntime.ListError{Pods: unknown}
	}
	return list, nil
}

// container returns the container of an ID, and follows it if it runs.
func (r *Runtime) container(ctx context.Context, id podruntime.ContainerID) (podruntime.Container, error) {
	// The scheme of a RuntimeID says what kind of runtime it is.
	c := podruntime.Container{ID: id, RuntimeID: "process://" + id.String()}
	st, err := shim.Read(r.dir(id))
	if err == nil && !st.MayHaveStarted {
		if st, err = r.awaitBegin(ctx, id); err == nil && !st.MayHaveStarted {
			_, err = os.Stat(r.dir(id)) // its files may have gone while they were read
		}
	}
	if err != nil {
		return c, err
	}
	if st.Running != nil {
		c.StartedAt = st.Running.StartedAt
	}
	switch {
	case st.Exit != nil:
		e := st.Exit
		if over, err := r.awaitEnd(ctx, id); err != nil || !over {
			c.State, c.StartedAt = podruntime.ContainerRunning, e.StartedAt
			return c, err
		}
		c.State, c.ExitCode, c.Signal, c.Reason, c.Message = podruntime.ContainerExited, e.Code, e.Signal, e.Reason, e.Message
		c.StartedAt, c.FinishedAt = e.StartedAt, e.FinishedAt
	case st.MayHaveStarted:
		c.State = podruntime.ContainerRunning
		_, err = r.follow(id)
	}
	return c, err
}

// awaitBegin waits for the shim of a run that has not started its command: it does so
// at once, or ends. A run without a shim is never started.
func (r *Runtime) awaitBegin(ctx context.Context, id podruntime.ContainerID) (shim.Status, error) {
	followed, err := r.follow(id)
	if errors.Is(err, fs.ErrNotExist) {
		return shim.Status{}, nil
	}
	if err != nil {
		return shim.Status{}, err
	}
	select {
	case <-followed.begun:
		return shim.Read(r.dir(id))
	case <-ctx.Done():
		return shim.Status{}, ctx.Err()
	}
}

// awaitEnd waits for the shim of a run that has an exit: it is about to end, too. It reports
// false if something of the run is left, such as a process that a command of kubectl exec has
// left behind and that can't be killed at once. The run has not ended until that is gone, and the
// other pods must not wait for it.
func (r *Runtime) awaitEnd(ctx context.Context, id podruntime.ContainerID) (over bool, err error) {
	r.mu.Lock()
	ended := r.ended[id]
	r.mu.Unlock()
	if ended {
		return true, nil
	}
	followed, err := r.follow(id)
	if err != nil {
		return false, err
	}
	select {
	case <-followed.over:
		return true, nil
	case <-followed.end():
	case <-ctx.Done(): // the time of the list is over: this run is not, as far as it is known
	}
	return false, nil
}

// Start implements podruntime.Runtime. It returns when the command runs or has ended.
func (r *Runtime) Start(ctx context.Context, spec podruntime.ContainerSpec) error {
	st, err := shim.Read(r.dir(spec.ID))
	if err != nil {
		return err
	}
	var followed *run
	if !st.MayHaveStarted {
		followed, err = r.fork(ctx, spec)
	} else if st.Exit == nil {
		followed, err = r.follow(spec.ID)
	}
	if err != nil || followed == nil {
		return err
	}
	select {
	case <-followed.begun:
	case <-ctx.Done():
		return ctx.Err()
	}
	if st, err = shim.Read(r.dir(spec.ID)); err == nil && !st.MayHaveStarted {
		return errors.New("the shim has ended before it started the container")
	}
	return err
}

// runRecord is the content of run.json, which Exec and Attach need.
type runRecord struct {
	Dir       string `json:"dir"`
	StdinOnce bool   `json:"stdinOnce,omitempty"`
}

// fork starts a run, unless a shim of an earlier process is about to.
func (r *Runtime) fork(ctx context.Context, spec podruntime.ContainerSpec) (*run, error) {
	dir := r.dir(spec.ID)
	if st, err := r.awaitBegin(ctx, spec.ID); err != nil || st.MayHaveStarted {
		return nil, err
	}
	cpus, err := r.cpus(ctx, spec.Pod, spec.Container)
	if err != nil {
		return nil, &podruntime.StartError{Reason: podenv.ReasonConfigError, Err: err}
	}
	root := filepath.Join(spec.Dir, "root")
	if err := link(root, spec.Mounts); err != nil {
		return nil, &podruntime.StartError{Reason: podenv.ReasonConfigError, Err: err}
	}
	work := workingDir(root, spec.Container.WorkingDir)
	env := environ(spec.Environment.Strings(), spec.Hostname, root)
	// The run is known before its FIFO exists: List would follow it, too, and only
	// one reader of a FIFO learns that the command runs.
	followed := newRun()
	r.mu.Lock()
	r.runs[spec.ID] = followed
	r.mu.Unlock()
	started, err := r.execute(dir, runRecord{work, spec.Container.StdinOnce}, shim.Command{
		Args:  append(slices.Clip(spec.Environment.Command), spec.Environment.Args...),
		Env:   env,
		Dir:   work,
		Log:   r.log(spec.ID),
		Stdin: spec.Container.Stdin,
		TTY:   spec.Container.TTY,
		CPUs:  cpus,
	})
	if err != nil {
		r.finish(spec.ID, followed)
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(spec.ID, followed, started)
	return followed, nil
}

// execute makes the directory of a run and its shim.
func (r *Runtime) execute(dir string, rec runRecord, c shim.Command) (*shim.Run, error) {
	// A directory that is there belongs to a run that has not started anything.
	if err := rmtree.Remove(dir); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if err := record.Write(filepath.Join(dir, "run.json"), rec); err != nil {
		return nil, err
	}
	return shim.Start(dir, c)
}

// follow returns the run of an ID and follows it until it ends. The run is opened if
// it is not followed; the error is fs.ErrNotExist if there is none.
func (r *Runtime) follow(id podruntime.ContainerID) (*run, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if followed, ok := r.runs[id]; ok {
		return followed, nil
	}
	opened, err := shim.Open(r.dir(id))
	if err != nil {
		return nil, err
	}
	followed := newRun()
	r.add(id, followed, opened)
	return followed, nil
}

// newRun returns a run that is not followed yet.
func newRun() *run {
	return &run{begun: make(chan struct{}), over: make(chan struct{}), late: make(chan struct{})}
}

// finish ends the life of a run of which nothing is left.
func (r *Runtime) finish(id podruntime.ContainerID, followed *run) {
	r.mu.Lock()
	delete(r.runs, id)
	r.ended[id] = true
	r.mu.Unlock()
	followed.begin()
	close(followed.over)
	r.report(id.Pod)
}

// add follows a run in a goroutine. r.mu must be held.
func (r *Runtime) add(id podruntime.ContainerID, followed *run, of *shim.Run) {
	if st, err := shim.Read(r.dir(id)); err == nil && st.Running != nil {
		followed.begin()
	}
	r.runs[id] = followed
	delete(r.ended, id)
	r.wg.Go(func() {
		for {
			err := of.Follow(r.ctx, func() { followed.begin(); r.report(id.Pod) })
			if r.ctx.Err() != nil {
				_ = of.Close()
				return
			}
			if err == nil {
				break
			}
			// The disk is full, perhaps. As long as the end of the run is not known
			// it has not ended.
			klog.FromContext(r.ctx).Error(err, "The end of a container can't be seen", "container", id)
			select {
			case <-time.After(time.Second):
			case <-r.ctx.Done():
				return
			}
			switch again, err := shim.Open(r.dir(id)); {
			case err == nil:
				of = again
			case errors.Is(err, fs.ErrNotExist):
				r.finish(id, followed) // the directory is gone
				return
			}
		}
		r.finish(id, followed)
	})
}

// report makes Watch report a pod.
func (r *Runtime) report(pod types.UID) {
	r.mu.Lock()
	r.changed[pod] = true
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Watch implements podruntime.Watcher.
func (r *Runtime) Watch(ctx context.Context, changed func(types.UID)) error {
	for {
		r.mu.Lock()
		pods := r.changed
		r.changed = map[types.UID]bool{}
		r.mu.Unlock()
		for pod := range pods {
			changed(pod)
		}
		select {
		case <-r.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// Stop implements podruntime.Runtime. It returns at once: the shim kills the command
// at the deadline.
func (r *Runtime) Stop(_ context.Context, id podruntime.ContainerID, opts podruntime.StopOptions) error {
	opened, err := shim.Open(r.dir(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = opened.Close() }()
	return opened.Stop(opts.Deadline)
}

// errRuns is the error of Remove for a run whose end is not seen yet.
var errRuns = errors.New("the container runs")

// removedPrefix begins the names of the directories of removed runs.
const removedPrefix = "removed-"

// Remove implements podruntime.Runtime. The directory gets another name before its
// files go one after the other: half a run looks like one whose shim was killed.
func (r *Runtime) Remove(ctx context.Context, id podruntime.ContainerID) error {
	dir := r.dir(id)
	removed := filepath.Join(filepath.Dir(dir), removedPrefix+filepath.Base(dir))
	if err := r.detach(id, removed); err != nil {
		return err
	}
	discard(ctx, removed)
	return os.RemoveAll(r.log(id))
}

// discard deletes a directory that a container could write to. What can't be deleted
// goes, or stays, with the directory of the pod: it must keep neither the pod nor the
// node.
func discard(ctx context.Context, dir string) {
	if err := rmtree.Remove(dir); err != nil {
		klog.FromContext(ctx).Error(err, "Files of a container can't be deleted")
	}
}

// detach renames the directory of a run that is not followed, if there is one.
func (r *Runtime) detach(id podruntime.ContainerID, to string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, runs := r.runs[id]; runs {
		return fmt.Errorf("%v: %w", id, errRuns)
	}
	delete(r.ended, id)
	// One of this name is left if a process died, or if the disk failed.
	discard(r.ctx, to)
	err := os.Rename(r.dir(id), to)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// LogTail implements podruntime.LogTailer.
func (r *Runtime) LogTail(_ context.Context, id podruntime.ContainerID, limit int64) ([]byte, error) {
	return crilog.Tail(r.log(id), limit)
}

// DiskUsage implements podruntime.DiskMeter: a container has the output of its runs and
// their records.
func (r *Runtime) DiskUsage(_ context.Context, pod types.UID) (map[string]int64, error) {
	containers, err := dirsIn(r.cfg.Root.containers(string(pod), ""))
	if err != nil {
		return nil, err
	}
	usage := map[string]int64{}
	for _, name := range containers {
		if usage[name], err = podruntime.DirUsage(r.cfg.Root.containers(string(pod), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return usage, nil
}

// execPrefix begins the names of the directories of commands that run in a container.
const execPrefix = "exec-"

// maxOutput is the number of bytes of a command's output that Exec returns.
const maxOutput = 1024

// Exec implements podruntime.Execer: the command has the environment of the
// container, and ends with this process.
func (r *Runtime) Exec(ctx context.Context, id podruntime.ContainerID, command []string) (result podruntime.ExecResult, err error) {
	r.mu.Lock()
	followed := r.runs[id] != nil
	r.mu.Unlock()
	st, err := shim.Read(r.dir(id))
	if err != nil {
		return result, err
	}
	var rec runRecord
	if _, err := record.Read(filepath.Join(r.dir(id), "run.json"), &rec); err != nil {
		return result, err
	}
	if !followed || st.Running == nil || st.Exit != nil {
		return result, fmt.Errorf("%v does not run", id)
	}
	env, err := shim.Environ(r.dir(id), st.Running.PID)
	if err != nil {
		return result, err
	}
	dir, err := os.MkdirTemp(filepath.Dir(r.dir(id)), execPrefix)
	if err != nil {
		return result, err
	}
	defer func() { discard(ctx, dir) }()
	log := filepath.Join(dir, "log")
	bound, err := shim.Start(dir, shim.Command{Args: command, Env: env, Dir: rec.Dir, Log: log, Bound: true})
	if err != nil {
		return result, err
	}
	defer context.AfterFunc(ctx, func() { _ = bound.Stop(time.Now()) })()
	// Until nothing of it is left, even if ctx is done before.
	if err := bound.Follow(context.WithoutCancel(ctx), func() {}); err != nil {
		return result, err
	}
	if ctx.Err() != nil {
		return result, ctx.Err()
	}
	if st, err = shim.Read(dir); err != nil {
		return result, err
	}
	if st.Exit == nil {
		return result, errors.New("the command was not started")
	}
	result.ExitCode = st.Exit.Code
	output, err := crilog.Tail(log, maxOutput)
	result.Output = append([]byte(st.Exit.Message), output...)
	return result, err
}

// cpus returns the CPUs that a container may run on, nil for all.
func (r *Runtime) cpus(ctx context.Context, pod *corev1.Pod, c *corev1.Container) ([]int, error) {
	if r.cfg.CPUs == nil || len(c.Resources.Claims) == 0 {
		return nil, nil
	}
	return r.cfg.CPUs(ctx, pod, c)
}

// CheckPod implements podruntime.PodChecker: the claims of all containers must be
// allocated.
func (r *Runtime) CheckPod(ctx context.Context, pod *corev1.Pod) error {
	var errs []error
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			_, err := r.cpus(ctx, pod, &list[i])
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// rootVariable names the directory below which a container's volumes are, each at
// its mountPath. Windows HostProcess containers, which have no mount namespace
// either, have the same variable.
const rootVariable = "CONTAINER_SANDBOX_MOUNT_POINT"

// environ adds the variables that a container runtime sets, and rootVariable.
func environ(vars []string, hostname, root string) []string {
	for _, v := range []string{"PATH=" + os.Getenv("PATH"), "HOSTNAME=" + hostname} {
		name, _, _ := strings.Cut(v, "=")
		if !slices.ContainsFunc(vars, func(v string) bool { return strings.HasPrefix(v, name+"=") }) {
			vars = append(vars, v)
		}
	}
	return append(vars, rootVariable+"="+root)
}

// link makes the root of a container: a symbolic link for each mount.
func link(root string, mounts []podruntime.Mount) error {
	// It is the working directory, and the last run may have left anything in it.
	if err := rmtree.Remove(root); err != nil {
		return err
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	for _, m := range mounts {
		path := filepath.Join(root, filepath.Clean("/"+m.ContainerPath))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		// A termination message in a volume: the last run of another container may
		// have left its link there.
		if target, err := os.Readlink(path); err == nil && target != m.HostPath {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
		if err := os.Symlink(m.HostPath, path); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// workingDir returns the working directory of a container: below its root if it is
// there, else that of the machine; the root if the container asks for none.
func workingDir(root, dir string) string {
	below := filepath.Join(root, filepath.Clean("/"+dir))
	if info, err := os.Stat(below); err == nil && info.IsDir() {
		return below
	}
	return dir
}
