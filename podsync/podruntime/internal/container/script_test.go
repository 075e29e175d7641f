// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package container

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

var update = flag.Bool("update", false, "rewrite the decisions in testdata")

// A stage is what a script is about: the containers of a pod and its sandbox.
type stage struct {
	now   time.Time
	pod   corev1.PodSpec
	facts Pod
	world World
	names []string
	shown []string // what was shown of each container
}

// TestScripts runs the scripts in testdata. A line is a fact, and the indented lines after it are
// what has changed in a container, and what must follow. `go test -run TestScripts -update` rewrites those; commit them only if you
// understand the difference.
//
//	pod POLICY                           a new pod, at 0s
//	container NAME KIND [hook] [probe] [rule CODE]
//	recall NAME ATTEMPT [ran] [lost] [noted]  a record of an earlier process
//	process [announced]                  another process recalls the records of this one, whose runs have
//	                                     ended with it if it has announced its end
//	image NAME IMAGE                     the spec has another image
//	after DURATION                       the time that passes
//	list NAME [ATTEMPT:STATE[:CODE]]…    the runtime's list; a run exits now
//	starting, started, given-up, may-have-run NAME
//	failed NAME REASON [BACKOFF-REASON]
//	probed NAME [started] [ready] [unready]
//	unhealthy NAME GRACE [again]         a hook has failed, or a probe: the run is to start again
//	replaced NAME                        another run must take its place
//	stop NAME DURATION [reset]           Stop was called with a deadline from now on
//	stop-failed NAME [DURATION]          of the last Stop, or of one with that deadline
//	hook-ended, reading, given-up-reading NAME
//	resizing NAME                        Resize is called
//	resized NAME                         it has the resources of another grant
//	hook NAME DURATION                   the preStop hook was called
//	message NAME TEXT
//	ending DURATION                      the pod must end in that time
//	sandbox none, unset, ready, lost
//	past NAME ATTEMPT                    the runs up to that one do not count
//	kept NAME ATTEMPT                    that run was done before a restart of the pod, and counts
//
// A fact that ends in old is about the run before.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			var s *stage
			for n, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
				switch {
				case strings.HasPrefix(line, " "):
					continue
				case line == "" || strings.HasPrefix(line, "#"):
					fmt.Fprintln(&out, line)
					continue
				}
				fmt.Fprintln(&out, line)
				words := strings.Fields(line)
				if words[0] == "pod" {
					s = &stage{now: now, facts: Pod{Past: map[string]int{}, Kept: map[string]int{}, Grace: 30 * time.Second, Backoff: Backoff{10 * time.Second, 5 * time.Minute, 10 * time.Minute}}}
					s.pod.RestartPolicy = corev1.RestartPolicy(words[1])
					continue
				}
				if words[0] == "container" {
					s.add(words[1:])
					continue
				}
				if err := s.fact(words); err != nil {
					fmt.Fprintln(&out, "  refused:", err)
				}
				for i, c := range s.world.Containers {
					if err := c.Check(); err != nil {
						t.Errorf("line %d: %s: %s: %v", n+1, line, s.names[i], err)
					}
				}
				for i := range s.names {
					if text := s.known(i); text != s.shown[i] {
						s.shown[i] = text
						fmt.Fprintln(&out, "  "+text)
					}
				}
				if text := s.decisions(); text != "" {
					fmt.Fprintln(&out, "  "+text)
				}
			}
			if *update {
				if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if out.String() != string(data) {
				t.Errorf("the decisions differ:\n%s", out.String())
			}
		})
	}
}

// add adds a container.
func (s *stage) add(words []string) {
	c := &corev1.Container{Name: words[0], Image: "image"}
	kind := Kind(slices.Index([]string{"init", "sidecar", "regular", "ephemeral"}, words[1]))
	always, never := corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever
	if kind == Sidecar {
		c.RestartPolicy = &always
	}
	for i, word := range words[2:] {
		switch word {
		case "hook":
			c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{}}
		case "probe":
			c.ReadinessProbe = &corev1.Probe{}
		case "rule":
			code, _ := strconv.Atoi(words[i+3])
			c.RestartPolicy = &never
			c.RestartPolicyRules = []corev1.ContainerRestartRule{{
				Action:    corev1.ContainerRestartRuleActionRestartAllContainers,
				ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{int32(code)}},
			}}
		}
	}
	s.names, s.shown = append(s.names, c.Name), append(s.shown, "")
	s.world.Containers = append(s.world.Containers, New(&s.facts, kind, c))
}

// fact applies a line.
func (s *stage) fact(words []string) error {
	duration := func(i int) time.Duration {
		d, err := time.ParseDuration(words[i])
		if err != nil {
			panic(err)
		}
		return d
	}
	switch words[0] {
	case "after":
		s.now = s.now.Add(duration(1))
		return nil
	case "ending":
		s.world.Deadline, s.facts.Ending = new(s.now.Add(duration(1))), true
		return nil
	case "sandbox":
		s.world.Sandbox = map[string]SandboxState{"none": SandboxNone, "unset": SandboxUnset, "ready": SandboxReady, "lost": SandboxLost}[words[1]]
		return nil
	case "past":
		s.facts.Past[words[1]], _ = strconv.Atoi(words[2])
		return nil
	case "kept":
		s.facts.Kept[words[1]], _ = strconv.Atoi(words[2])
		return nil
	case "process":
		s.facts.Announced = slices.Contains(words, "announced")
		for i, c := range s.world.Containers {
			s.world.Containers[i] = New(&s.facts, c.kind, c.spec)
			if c.Attempt > 0 {
				s.world.Containers[i].Recall(c.Attempt-1, c.PrevRecord)
			}
			if c.Attempt >= 0 {
				s.world.Containers[i].Recall(c.Attempt, c.Record)
			}
		}
		return nil
	}
	c := s.world.Containers[slices.Index(s.names, words[1])]
	if words[0] == "recall" {
		rec := Record{Image: "image", Noted: slices.Contains(words, "noted")}
		attempt, _ := strconv.Atoi(words[2])
		if slices.Contains(words, "ran") {
			rec.Ran = s.now
		}
		if slices.Contains(words, "lost") {
			rec.Ran, rec.End = s.now, lost(s.now, s.now)
		}
		c.Recall(attempt, rec)
		return nil
	}
	attempt := c.Attempt
	if words[len(words)-1] == "old" {
		attempt--
	}
	var event Event
	switch words[0] {
	case "list":
		e := Listed{}
		for _, text := range words[2:] {
			parts := strings.Split(text, ":")
			run := Run{StartedAt: c.Record.Ran, FinishedAt: s.now}
			run.Attempt, _ = strconv.Atoi(parts[0])
			run.State = State(slices.Index([]string{"created", "running", "exited"}, parts[1]))
			if run.StartedAt.IsZero() {
				run.StartedAt = s.now
			}
			if len(parts) > 2 {
				code, _ := strconv.Atoi(parts[2])
				run.ExitCode = int32(code)
			}
			if was := c.Run; was != nil && was.Attempt == run.Attempt && was.State == Exited {
				run.StartedAt, run.FinishedAt = was.StartedAt, was.FinishedAt
			}
			e.Runs = append(e.Runs, run)
		}
		event = e
	case "starting":
		event = Starting{}
	case "started":
		event = StartEnded{}
	case "given-up":
		event = StartEnded{GivenUp: true}
	case "may-have-run":
		event = StartEnded{MayHaveRun: true}
	case "failed":
		f := &Failure{Reason: words[2]}
		if len(words) > 3 {
			f.BackoffReason = words[3]
		}
		event = StartEnded{Failure: f}
	case "probed":
		e := Probed{Attempt: attempt, PostStarted: true, Started: slices.Contains(words, "started")}
		if slices.Contains(words, "ready") || slices.Contains(words, "unready") {
			e.Ready = new(slices.Contains(words, "ready"))
		}
		event = e
	case "unhealthy":
		event = Unhealthy{attempt, s.now.Add(duration(2)), slices.Contains(words, "again")}
	case "image":
		spec := c.spec.DeepCopy()
		spec.Image = words[2]
		event = SpecChanged{spec}
	case "replaced":
		event = Replaced{}
	case "stop":
		event = StopSent{By: s.now.Add(duration(2)), Reset: slices.Contains(words, "reset")}
	case "stop-failed":
		e := StopFailed{attempt, c.sent}
		if len(words) > 2 && words[2] != "old" {
			e.By = s.now.Add(duration(2))
		}
		event = e
	case "hook":
		event = HookCalled{s.now.Add(duration(2))}
	case "hook-ended":
		event = HookEnded{attempt}
	case "reading":
		event = MessageReading{}
	case "given-up-reading":
		event = MessageGivenUp{}
	case "resizing":
		event = Resizing{attempt}
	case "resized":
		event = Resized{attempt, "grant"}
	case "message":
		event = MessageRead{attempt, strings.Join(words[2:], " ")}
	default:
		panic("no such fact: " + words[0])
	}
	before := *c
	err := c.Apply(s.now, event)
	if words[len(words)-1] == "old" && !reflect.DeepEqual(before, *c) {
		return fmt.Errorf("a fact about an old run has changed %+v to %+v", before, *c)
	}
	return err
}

// known returns what is known of a container as a text.
func (s *stage) known(i int) string {
	c, rec := s.world.Containers[i], s.world.Containers[i].Record
	all := []string{fmt.Sprintf("%s/%d", s.names[i], c.Attempt)}
	add := func(is bool, format string, args ...any) {
		if is {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	when := func(name string, t time.Time) { add(!t.IsZero(), name+" %v", t.Sub(now)) }
	if c.Run != nil {
		add(true, "%s", [...]string{"created", "running", "exited"}[c.Run.State])
		add(c.Run.State == Exited, "with %d", c.Run.ExitCode)
		add(c.Run.Reason != "", "%s", c.Run.Reason)
	}
	add(c.Starting, "starting")
	when("ran", rec.Ran)
	if rec.End != (End{}) && !rec.End.Seen {
		when("lost", rec.End.FinishedAt)
	}
	add(rec.Waited > 0, "waited %v", rec.Waited)
	add(rec.Image != "" && rec.Image != "image", "image %s", rec.Image)
	add(rec.Resources != "", "resources %s", rec.Resources)
	add(rec.Resizing, "or others")
	add(rec.PostStarted, "post-started")
	add(rec.Started, "started")
	add(rec.Ready, "ready")
	add(rec.PreStopped, "pre-stopped")
	add(rec.Replace, "to be replaced")
	add(c.reading, "message being read")
	add(rec.Noted, "message %q", rec.Message)
	add(c.MayBeProbed(), "may be probed")
	if c.Listed(Running) {
		when("ending by", rec.EndBy)
	}
	add(c.hook, "hook by %v", c.hookBy.Sub(now))
	when("stop sent", c.sentAt)
	when("with deadline", c.sent)
	add(c.Failure != nil, "%d failures", c.failures)
	when("due", c.Due)
	if c.Prev != nil {
		add(true, "after run %d with %d%s", c.Prev.Attempt, c.Prev.ExitCode, strings.TrimRight(" "+c.Prev.Reason, " "))
	}
	add(c.Older != nil, "and %v", c.Older)
	return strings.TrimSpace(strings.Join(all, ", "))
}

// decisions returns the plan as a text.
func (s *stage) decisions() string {
	p := Decide(&s.pod, s.world, s.now)
	var all []string
	add := func(is bool, format string, args ...any) {
		if is {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	add(p.Finished, "the work is done")
	add(p.Reset, "reset")
	add(p.Restart, "begin again")
	add(p.SetUp, "set up")
	for _, i := range p.Start {
		add(true, "start %s/%d", s.names[i], s.next(i))
	}
	for _, d := range p.Hook {
		add(true, "hook of %s by %v", s.names[d.Container], d.By.Sub(now))
	}
	for _, d := range p.Stop {
		add(true, "stop %s by %v", s.names[d.Container], d.By.Sub(now))
	}
	add(p.TearDown, "tear down")
	add(p.Stopped, "stopped")
	add(!p.Again.IsZero(), "again at %v", p.Again.Sub(now))
	return strings.Join(all, ", ")
}

// next returns the attempt that a start would have.
func (s *stage) next(i int) int {
	c := s.world.Containers[i]
	if c.Listed(Exited) {
		return c.Attempt + 1
	}
	return max(c.Attempt, 0)
}
