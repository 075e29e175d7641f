// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// childEnv names the call of Find that a child process serves.
const childEnv = "KUBEWRIGHT_EXPLORE_CHILD"

// freeEnv is set if a child must not order requests.
const freeEnv = "KUBEWRIGHT_EXPLORE_FREE"

// stuckAfter is the number of ticks without a step after which a run counts as stuck. A child
// counts its own ticks, because one that is slow, on a machine with a high load, is not stuck.
var stuckAfter = 30

// tick is the real time between looks at a run, and aliveEvery the number of ticks between
// messages of a child.
const (
	tick       = time.Second
	aliveEvery = 5
)

// calls counts the calls of Find in each test, because a child must know which is its.
var calls = struct {
	sync.Mutex
	n map[string]int
}{n: map[string]int{}}

// callOf names this call of Find.
func callOf(t *testing.T) string {
	calls.Lock()
	defer calls.Unlock()
	name := t.Name()
	calls.n[name]++
	if calls.n[name] == 1 {
		t.Cleanup(func() {
			calls.Lock()
			defer calls.Unlock()
			delete(calls.n, name)
		})
	}
	return fmt.Sprintf("%s#%d", name, calls.n[name])
}

// team runs jobs.
type team interface {
	// prepare returns all plans with one fault.
	prepare() ([]string, error)
	// do runs jobs, and calls done for each, one at a time.
	do(jobs []job, done func(i int, v verdict))
	close()
}

// solo runs jobs in this process.
type solo struct{ *lab }

func (s *solo) prepare() ([]string, error) {
	if err := s.lab.prepare(); err != nil {
		return nil, err
	}
	return s.lines(), nil
}

func (l *lab) lines() []string {
	lines := make([]string, len(l.plans))
	for i, p := range l.plans {
		lines[i] = p.String()
	}
	return lines
}

func (s *solo) do(jobs []job, done func(int, verdict)) {
	for i, j := range jobs {
		done(i, s.try(j))
	}
}

func (s *solo) close() {}

// greeting is the first message of a child.
type greeting struct {
	Error string
	Plans []string
	// Unsteady are the steps after which runs without faults differ, and how.
	Unsteady []string
}

// serve is the life of a child process: it answers jobs until its input ends.
func (l *lab) serve() {
	l.free = os.Getenv(freeEnv) != ""
	answers := &sender{to: json.NewEncoder(os.NewFile(3, "answers"))}
	go answers.alive()
	var hello greeting
	answers.busy.Store(true)
	if err := l.prepare(); err != nil {
		hello.Error = err.Error()
	}
	answers.busy.Store(false)
	hello.Plans, hello.Unsteady = l.lines(), l.unsteady
	err := answers.send(hello)
	for in := json.NewDecoder(os.Stdin); err == nil; {
		var j job
		if err = in.Decode(&j); err == nil {
			answers.busy.Store(true)
			v := l.try(j)
			answers.busy.Store(false)
			err = answers.send(v)
		}
	}
	os.Exit(0)
}

// sender sends the messages of a child.
type sender struct {
	busy atomic.Bool // with runs
	mu   sync.Mutex
	to   *json.Encoder
}

func (s *sender) send(v any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.to.Encode(v)
}

// alive sends a message at times, if there were steps since the last one. It ends a process
// whose run is stuck, after a message that says what its goroutines do.
func (s *sender) alive() {
	last, idle := int64(0), 0
	for n := 0; ; n++ {
		time.Sleep(tick)
		now := steps.Load()
		if now != last || !s.busy.Load() {
			idle = 0
		} else if idle++; idle >= stuckAfter {
			var hang sign
			hang.Stacks, hang.Spins = awake()
			if w := current.Load(); w != nil && w.mu.TryLock() {
				hang.Journal = told(w.journal, before+after)
				w.mu.Unlock()
			}
			_ = s.send(hang)
			os.Exit(0)
		}
		if n%aliveEvery == 0 && now != last && s.send(sign{Alive: true}) != nil {
			return
		}
		last = now
	}
}

// awake returns the stacks of the goroutines of a bubble that keep its time from moving, and
// reports whether one of them runs. If not, they wait for a lock, or for something outside.
func awake() (stacks string, runs bool) {
	buf := make([]byte, 4<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var all []string
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		head, _, _ := strings.Cut(stack, "\n")
		if !strings.Contains(head, "synctest bubble") || strings.Contains(head, "(durable)") || strings.Contains(head, "synctest.Run") || strings.Contains(head, "synctest.Wait") {
			continue
		}
		all = append(all, stack)
		runs = runs || strings.Contains(head, "[running") || strings.Contains(head, "[runnable")
	}
	return strings.Join(all[:min(len(all), 10)], "\n\n"), runs
}

// sign is the message of alive.
type sign struct {
	Alive bool
	// If the run is stuck: its goroutines, whether one of them runs, and the end of its journal.
	Stacks, Journal string
	Spins           bool
}

// stuckError is the error of a process whose run makes no step.
type stuckError struct{ sign }

// Error implements error.
func (e *stuckError) Error() string {
	what := "all of its goroutines wait, and some of them for a lock or for something outside of the bubble"
	if e.Spins {
		what = "it computes without an end, in " + frame(e.Stacks)
	}
	return fmt.Sprintf("the run makes no step and virtual time can't move: %s\ngoroutines:\n%s\n\nthe end of its journal:\n%s", what, e.Stacks, e.Journal)
}

// children runs jobs in child processes, one for each processor.
type children struct {
	call, test string
	free       bool
	idle       []*child
}

// pattern is the -test.run of a test.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// child is a running child process.
type child struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	jobs    *json.Encoder
	answers chan json.RawMessage // closed when the process has ended
	log     *tail
	pipe    *os.File
}

func (c *children) start() (*child, greeting, error) {
	args := []string{"-test.run=" + pattern(c.test), "-test.timeout=0"}
	for given := os.Args[1:]; len(given) > 0; given = given[1:] {
		name, _, hasValue := strings.Cut(strings.TrimLeft(given[0], "-"), "=")
		if !strings.HasPrefix(given[0], "-test.") && !strings.HasPrefix(given[0], "-explore.") {
			args = append(args, given[0])
		} else if f := flag.Lookup(name); !hasValue && f != nil && !isSwitch(f) && len(given) > 1 {
			given = given[1:] // its value
		}
	}
	k := &child{cmd: exec.Command(os.Args[0], args...), answers: make(chan json.RawMessage), log: &tail{}}
	k.cmd.Env = append(os.Environ(), childEnv+"="+c.call, "GOMAXPROCS=1")
	if c.free {
		k.cmd.Env = append(k.cmd.Env, freeEnv+"=1")
	}
	k.cmd.Stdout, k.cmd.Stderr = k.log, k.log
	in, err := k.cmd.StdinPipe()
	if err != nil {
		return nil, greeting{}, err
	}
	out, w, err := os.Pipe()
	if err != nil {
		return nil, greeting{}, err
	}
	k.in, k.jobs, k.pipe = in, json.NewEncoder(in), out
	k.cmd.ExtraFiles = []*os.File{w}
	err = k.cmd.Start()
	w.Close()
	if err != nil {
		out.Close()
		return nil, greeting{}, err
	}
	go func() {
		defer close(k.answers)
		for dec := json.NewDecoder(bufio.NewReader(out)); ; {
			var raw json.RawMessage
			if dec.Decode(&raw) != nil {
				return
			}
			k.answers <- raw
		}
	}()
	var hello greeting
	if err := k.receive(&hello); err != nil {
		k.end()
		return nil, hello, err
	}
	if hello.Error != "" {
		k.end()
		return nil, hello, errors.New(hello.Error)
	}
	return k, hello, nil
}

// isSwitch reports whether a flag needs no value.
func isSwitch(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// receive reads one message, or returns how the process has ended.
func (k *child) receive(v any) error {
	for {
		raw, ok := <-k.answers
		if !ok {
			state := "ended"
			if err := k.cmd.Wait(); err != nil {
				state = err.Error()
			}
			return fmt.Errorf("the process of the run has died: %s\n%s", state, k.log)
		}
		var s sign
		err := json.Unmarshal(raw, &s)
		switch {
		case err == nil && s.Alive:
		case err == nil && s.Stacks != "":
			return &stuckError{s}
		default:
			return json.Unmarshal(raw, v)
		}
	}
}

// end stops the process.
func (k *child) end() {
	k.in.Close()
	_ = k.cmd.Process.Kill()
	go func() {
		for range k.answers {
		}
	}()
	_ = k.cmd.Wait()
	k.pipe.Close()
}

func (c *children) prepare() ([]string, error) {
	k, hello, err := c.start()
	var stuck *stuckError
	if errors.As(err, &stuck) && !stuck.Spins {
		// A program waits for a lock that another goroutine holds during a request, so
		// time can't move.
		fmt.Fprintln(os.Stderr, "explore: programs hold locks during requests, so the order of requests is not fixed")
		c.free = true
		k, hello, err = c.start()
	}
	if err != nil {
		return nil, fmt.Errorf("explore: the run without faults: %w", err)
	}
	c.idle = append(c.idle, k)
	for _, step := range hello.Unsteady {
		fmt.Fprintf(os.Stderr, "explore: what exists is not compared after a step, because runs without faults differ there: %s\n", step)
	}
	return hello.Plans, nil
}

func (c *children) do(jobs []job, done func(int, verdict)) {
	var mu sync.Mutex
	next := 0
	var wg sync.WaitGroup
	for n := range min(runtime.GOMAXPROCS(0), (len(jobs)+7)/8) {
		var k *child
		if n < len(c.idle) {
			k = c.idle[n]
		}
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= len(jobs) {
					break
				}
				var v verdict
				k, v = c.answer(k, jobs[i])
				mu.Lock()
				done(i, v)
				mu.Unlock()
			}
			mu.Lock()
			defer mu.Unlock()
			if n < len(c.idle) {
				c.idle[n] = k
			} else if k != nil {
				c.idle = append(c.idle, k)
			}
		})
	}
	wg.Wait()
}

// answer has a job done by k, or by a new process if k is nil or dies.
func (c *children) answer(k *child, j job) (*child, verdict) {
	v := verdict{Plan: j.Plan}
	for v.Runs < repeats {
		if k == nil {
			var err error
			if k, _, err = c.start(); err != nil {
				v.Runs++
				v.Failed++
				v.Problem, v.Story = "no process for the run", err.Error()
				return nil, v
			}
		}
		var got verdict
		err := k.jobs.Encode(j)
		if err == nil {
			err = k.receive(&got)
		} else {
			err = k.receive(&got) // says how it died
		}
		if err == nil {
			if v.Failed == 0 {
				return k, got
			}
			v.Runs++
			continue
		}
		k.end()
		k = nil
		var stuck *stuckError
		if errors.As(err, &stuck) && !stuck.Spins && !j.Free {
			j.Free = true // see prepare
			continue
		}
		v.Runs++
		v.Failed++
		problem, log, _ := strings.Cut(err.Error(), "\n")
		if text, stack, _ := strings.Cut(log, "\n"); strings.HasPrefix(text, "panic: ") {
			problem += ": " + text + " in " + frame(stack)
		}
		v.Problem, v.Story = problem, fmt.Sprintf("plan: %s\nproblem: %v", j.Plan, err)
		if stuck != nil {
			return nil, v // it would take as long again
		}
	}
	return k, v
}

func (c *children) close() {
	for _, k := range c.idle {
		if k != nil {
			k.end()
		}
	}
}

// tail keeps the end of the output of a process. String begins at the first panic.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailSize = 64 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if len(t.buf) > 2*tailSize {
		t.buf = append([]byte(nil), t.buf[len(t.buf)-tailSize:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := string(t.buf)
	for _, mark := range []string{"panic: ", "fatal error: "} {
		if at := strings.Index(s, mark); at >= 0 {
			s = s[at:]
			return s[:min(len(s), 4000)]
		}
	}
	return s[max(0, len(s)-4000):]
}
