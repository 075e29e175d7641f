// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Chaos runs examples/kubelet on a real control plane, creates and deletes
// pods, and injects faults into all its dependencies: see README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal has its default effect
	ok, err := run(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// options are the command line flags.
type options struct {
	duration time.Duration
	seed     uint64
	dir      string
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.DurationVar(&o.duration, "duration", 10*time.Minute, "`time` for which faults are injected")
	flags.Uint64Var(&o.seed, "seed", 0, "`number` that determines the faults and the order of changes; 0: random")
	flags.StringVar(&o.dir, "dir", "", "`directory` for logs and the report; if empty, they are kept only if a rule was broken")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 || o.duration < 10*time.Second {
		return o, errors.New("usage: chaos [--duration=10m] [--seed=N] [--dir=DIRECTORY]; the duration is 10s or more")
	}
	for o.seed == 0 {
		o.seed = uint64(rand.Uint32())
	}
	return o, nil
}

// run makes one run and prints its report. It reports whether all rules held.
func run(ctx context.Context, args []string) (ok bool, err error) {
	o, err := parse(args)
	if err != nil {
		return false, err
	}
	klog.LogToStderr(false) // client-go logs every outage
	klog.SetOutput(nowhere{})
	dir, err := o.folder()
	if err != nil {
		return false, err
	}
	// The harness requires the variable that its tests set.
	if err := os.Setenv("KUBEWRIGHT_E2E", "1"); err != nil {
		return false, err
	}
	began := time.Now()
	var mu sync.Mutex
	r := &rig{host: &host{ctx: ctx}, dir: dir, log: func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf("%6.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}}
	r.log("seed %d, %v, files in %s", o.seed, o.duration, dir)
	rep, err := r.run(ctx, o)
	if err != nil {
		r.saveLogs()
	}
	err = errors.Join(err, r.close())
	if rep != nil {
		ok = rep.ok()
		text := rep.text()
		fmt.Print(text)
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, "report.txt"), []byte(text), 0o600))
	}
	if ok && err == nil && o.dir == "" {
		return ok, os.RemoveAll(dir)
	}
	r.log("files are in %s", dir)
	return ok, err
}

// nowhere discards the logs of this program's own clients.
type nowhere struct{}

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }

// folder creates the directory of the run.
func (o options) folder() (string, error) {
	if o.dir == "" {
		return os.MkdirTemp("", "kubewright-chaos-")
	}
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return "", err
	}
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return "", fmt.Errorf("%s is not empty", dir)
	}
	return dir, os.MkdirAll(dir, 0o700)
}

// run prepares, injects faults, repairs them, and checks the result.
func (r *rig) run(ctx context.Context, o options) (*report, error) {
	if err := r.prepare(ctx, o.seed); err != nil {
		return nil, err
	}
	in := &injector{
		host: r.host, cluster: r.cluster, kubelet: r.kubelet, proxy: r.proxy, disk: r.disk, clock: r.clock,
		record: r.record, log: r.log, count: map[kind]int{},
	}
	if !r.disk.Mounted() {
		r.log("NOT COVERED: a full disk, which requires permission to mount a file system")
	}
	if err := r.kubelet.start(ctx); err != nil {
		return nil, err
	}
	if found := settle(ctx, time.Minute, r.unsettled); len(found) > 0 {
		return nil, fmt.Errorf("before the first fault: %v", found)
	}
	r.log("injecting faults")
	if err := r.chaos(ctx, o, in); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, errors.New("interrupted")
	}
	r.clock.step(0)
	r.record.note("", "the chaos ends")
	verdicts, err := r.finish(ctx)
	if err != nil {
		return nil, err
	}
	history, err := r.record.judge()
	if err != nil {
		return nil, err
	}
	rep := newReport(r, in, o, append(history, verdicts...))
	if !rep.ok() {
		r.saveLogs()
	}
	return rep, nil
}

// chaos injects faults until the time is over or a required process ends.
func (r *rig) chaos(ctx context.Context, o options, in *injector) error {
	ctx, cancel := context.WithTimeout(ctx, o.duration)
	defer cancel()
	began := time.Now()
	var wg sync.WaitGroup
	for _, l := range lanes(r.disk.Mounted()) {
		wg.Go(func() {
			err := in.run(ctx, began, l.schedule(o.seed, o.duration))
			if r.fail(err); err != nil {
				cancel()
			}
		})
	}
	wg.Go(func() { r.churn.run(ctx) })
	wg.Go(func() { r.judgeOnTheWay(ctx) })
	wg.Wait()
	select {
	case err := <-r.failure:
		return err
	default:
		return nil
	}
}

// judgeInterval is the time between two checks of the history during the run.
const judgeInterval = 10 * time.Second

// judgeOnTheWay logs violations as soon as they are found.
func (r *rig) judgeOnTheWay(ctx context.Context) {
	var said []finding
	for {
		sleep(ctx, judgeInterval)
		if ctx.Err() != nil {
			return
		}
		verdicts, err := r.record.judge()
		if err != nil {
			r.fail(err)
			return
		}
		for _, v := range verdicts {
			for _, f := range v.Findings {
				if !slices.Contains(said, f) {
					said = append(said, f)
					r.log("BROKEN: %s: pod %s: %s", f.Rule, f.UID, f.Text)
				}
			}
		}
	}
}
