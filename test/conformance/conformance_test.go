// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/test/conformance/rig"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

// variable must be "1" for all specs to run. If it is "built", the subset runs only with
// the programs that are in the cache: to build them takes ten minutes.
const variable = "KUBEWRIGHT_CONFORMANCE"

// subset are specs of about two minutes, one of each kind.
const subset = `should be updated|should invoke init containers on a RestartNever pod|should be restarted with a exec "cat` +
	`|should execute prestop exec hook properly|should report termination message from log output` +
	`|should be able to override the image's default command|should provide pod UID as env vars` +
	`|should be consumable via environment variable|\] ConfigMap updates should be reflected in volume|\(non-root,0666,tmpfs\)` +
	`|should write entries to /etc/hosts|should allow substituting values in a volume subpath`

// TestSubset runs some of Kubernetes' conformance tests.
func TestSubset(t *testing.T) {
	if !harness.Enabled() {
		t.Skip(`needs a real control plane and containers: run "make e2e-containers"`)
	}
	switch version := os.Getenv("KUBEWRIGHT_E2E_VERSION"); os.Getenv(variable) {
	case "1":
		t.Skip("TestConformance runs all")
	case "built":
		if version != "" && !strings.HasPrefix(rig.Version+".", "v"+version+".") {
			t.Skipf("examples/crikubelet on containerd is left out: the specs are those of Kubernetes %s", rig.Version)
		}
		if missing := rig.Missing(); missing != "" {
			t.Skip("examples/crikubelet on containerd is left out: " + missing)
		}
		if !rig.Built() {
			t.Skip(`examples/crikubelet on containerd is left out: Kubernetes' tests are not built yet; "make e2e-containers" builds them`)
		}
	}
	s := newSuite(t)
	s.report(t, s.run(t, 3, "--ginkgo.label-filter=(Conformance || NodeConformance) && !Serial && !Slow", "--ginkgo.focus="+subset))
}

// TestConformance runs the specs below test/e2e/common that are labelled Conformance or
// NodeConformance, a few of one file at a time in each of several processes.
// KUBEWRIGHT_CONFORMANCE_FILES selects files, and KUBEWRIGHT_CONFORMANCE_FOCUS and
// KUBEWRIGHT_CONFORMANCE_SKIP specs.
func TestConformance(t *testing.T) {
	if os.Getenv(variable) != "1" {
		t.Skip(`takes half an hour to an hour: run "make conformance"`)
	}
	s := newSuite(t)
	s.report(t, s.run(t, workers(), selection("--ginkgo.label-filter=Conformance || NodeConformance")...))
}

// selection returns the arguments that select specs: args and those of the variables.
func selection(args ...string) []string {
	if focus := os.Getenv(variable + "_FOCUS"); focus != "" {
		args = append(args, "--ginkgo.focus="+focus)
	}
	if skip := os.Getenv(variable + "_SKIP"); skip != "" {
		args = append(args, "--ginkgo.skip="+skip)
	}
	return args
}

// workers returns the number of processes that run specs.
func workers() int {
	n, _ := strconv.Atoi(os.Getenv(variable + "_WORKERS"))
	return cmp.Or(n, 4)
}

// A suite is a cluster with its nodes, and the program with the tests.
type suite struct {
	cluster *harness.Cluster
	runtime *rig.Runtime // of TestConformance and the kill tests, as is kubelet
	kubelet *rig.Kubelet
	e2e     string
	home    string   // of an example
	root    string   // of the sources with the specs
	files   []string // those with the specs, relative to root; empty: all
	known   []string // specs that can't pass on the nodes, or only by chance; they run only if _FOCUS selects specs
	logs    []string // of the node
	dir     string
}

func newSuite(t *testing.T) *suite {
	t.Helper()
	if missing := rig.Missing(); missing != "" {
		t.Skip(missing)
	}
	return newSuiteWith(t, rig.Build(t))
}

func newSuiteWith(t *testing.T, binaries rig.Binaries, args ...string) *suite {
	t.Helper()
	s := &suite{e2e: binaries.E2E, root: "test/e2e/common/", dir: resultDir(t)}
	program := rig.BuildCrikubelet(t)
	s.runtime = rig.StartRuntime(t, binaries)
	s.cluster = harness.Start(t, harness.Options{})
	s.kubelet = rig.Crikubelet(t, program, s.cluster, s.runtime, "worker", args...)
	client, err := kubernetes.NewForConfig(s.cluster.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	s.logs = []string{s.kubelet.Log(), s.runtime.Log()}
	t.Cleanup(func() { s.keepLogs(t) })
	s.kubelet.AwaitReady(t, client)
	return s
}

// resultDir returns the directory for logs and reports, which it creates.
func resultDir(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv(variable + "_DIR"); dir != "" {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	return t.TempDir()
}

// keepLogs copies the logs of the node.
func (s *suite) keepLogs(t *testing.T) {
	for _, from := range s.logs {
		if err := copyFile(from, filepath.Join(s.dir, filepath.Base(from))); err != nil {
			t.Log(err)
		}
	}
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	_, err = io.Copy(out, in)
	return err
}

// A spec is the result of one spec.
type spec struct {
	file, name, state, failure string
	took                       time.Duration
}

// specReport is Ginkgo's report of one spec.
type specReport struct {
	ContainerHierarchyTexts []string
	LeafNodeType            string
	LeafNodeText            string
	LeafNodeLocation        struct{ FileName string }
	State                   string
	RunTime                 time.Duration
	Failure                 struct{ Message string }
}

// A part is some specs of a file, which one process runs.
type part struct {
	name  string // of its log and report
	file  string
	specs []string
}

// partSize is the largest number of specs of a part. They run one after the other, and
// many of them wait for minutes.
const partSize = 12

// run runs specs in several processes. Each takes the next part. The specs that run two
// minutes before the test's own time limit are interrupted.
func (s *suite) run(t *testing.T, workers int, args ...string) []spec {
	t.Helper()
	args = slices.Clip(args) // the processes append to it
	ctx := t.Context()
	if deadline, ok := t.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-2*time.Minute))
		defer cancel()
	}
	parts := make(chan part)
	go func() {
		defer close(parts)
		for _, p := range s.selected(t, args) {
			select {
			case parts <- p:
			case <-ctx.Done():
				return
			}
		}
	}()
	var (
		mu  sync.Mutex
		all []spec
		wg  sync.WaitGroup
	)
	for range workers {
		wg.Go(func() {
			for p := range parts {
				begin := time.Now()
				specs, err := s.runPart(ctx, p, args)
				if err == nil && len(specs) < len(p.specs) {
					err = fmt.Errorf("%d of %d specs have run", len(specs), len(p.specs))
				}
				if err != nil {
					t.Errorf("%s: %v", p.name, err)
				}
				passed := 0
				for _, spec := range specs {
					if spec.state == "passed" {
						passed++
					}
				}
				t.Logf("%s: %d of %d passed in %v", p.name, passed, len(specs), time.Since(begin).Round(time.Second))
				mu.Lock()
				all = append(all, specs...)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return all
}

// selected returns the parts with the specs that args select in the files of s.files.
func (s *suite) selected(t *testing.T, args []string) (parts []part) {
	specs, err := s.execute(t.Context(), "dry", append(args, "--ginkgo.dry-run", "--ginkgo.focus-file="+s.root))
	if err != nil {
		t.Error(err)
	}
	wanted := s.files
	if files := os.Getenv(variable + "_FILES"); files != "" {
		wanted = strings.Split(files, ",")
	}
	names := map[string][]string{}
	focused := os.Getenv(variable+"_FOCUS") != ""
	for _, spec := range specs {
		if (len(wanted) == 0 || slices.Contains(wanted, spec.file)) && (focused || !slices.Contains(s.known, spec.name)) {
			names[spec.file] = append(names[spec.file], spec.name)
		}
	}
	if !focused && os.Getenv(variable+"_SKIP") == "" {
		for _, name := range s.known {
			if !slices.ContainsFunc(specs, func(s spec) bool { return s.name == name }) {
				t.Errorf("no spec has the name %q, which the test knows", name)
			}
		}
	}
	for _, file := range slices.Sorted(maps.Keys(names)) {
		name := strings.TrimSuffix(strings.ReplaceAll(file, "/", "_"), ".go")
		count := (len(names[file]) + partSize - 1) / partSize
		for i := range count {
			p := part{name: name, file: file}
			if count > 1 {
				p.name = fmt.Sprintf("%s_%d", name, i+1)
			}
			for at := i; at < len(names[file]); at += count { // neighbors take as long
				p.specs = append(p.specs, names[file][at])
			}
			parts = append(parts, p)
		}
	}
	// The largest first, so that the last worker ends soon.
	slices.SortStableFunc(parts, func(a, b part) int { return len(b.specs) - len(a.specs) })
	return parts
}

// runPart runs the specs of a part, which args select with others.
func (s *suite) runPart(ctx context.Context, p part, args []string) ([]spec, error) {
	args = slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return strings.HasPrefix(arg, "--ginkgo.focus=") })
	var names []string
	for _, name := range p.specs {
		names = append(names, regexp.QuoteMeta(name))
	}
	return s.execute(ctx, p.name, append(args, "--ginkgo.focus-file="+s.root+p.file, "--ginkgo.focus=("+strings.Join(names, "|")+")$"))
}

// execute runs the program and returns the specs that were selected.
func (s *suite) execute(ctx context.Context, name string, args []string) ([]spec, error) {
	out := filepath.Join(s.dir, name+".json")
	cmd := exec.CommandContext(ctx, s.e2e, append(args,
		"--kubeconfig="+s.cluster.AdminKubeconfig(), "--provider=local", "--num-nodes=1", "--minStartupPods=0", "--disable-log-dump",
		"--ginkgo.timeout=2h", "--ginkgo.no-color", "--ginkgo.json-report="+out)...)
	log, err := os.Create(filepath.Join(s.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = s.dir
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it writes its report
	cmd.WaitDelay = 90 * time.Second
	failed := cmd.Run() // also if a spec has failed
	data, err := os.ReadFile(out)
	if err != nil {
		return nil, fmt.Errorf("%v: %w; see %s", failed, err, log.Name())
	}
	var suites []struct{ SpecReports []specReport }
	if err := json.Unmarshal(data, &suites); err != nil {
		return nil, err
	}
	var specs []spec
	for _, suite := range suites {
		for _, r := range suite.SpecReports {
			_, file, ok := strings.Cut(r.LeafNodeLocation.FileName, s.root)
			if r.LeafNodeType != "It" && r.State != "failed" || !ok || r.State == "skipped" && r.Failure.Message == "" {
				continue
			}
			specs = append(specs, spec{file, strings.Join(append(r.ContainerHierarchyTexts, r.LeafNodeText), " "), r.State, r.Failure.Message, r.RunTime})
		}
	}
	return specs, nil
}

// report writes a table by file, and fails the test for each spec that failed, except known ones.
func (s *suite) report(t *testing.T, specs []spec) {
	t.Helper()
	if len(specs) == 0 {
		t.Fatal("no spec has run")
	}
	type row struct{ passed, failed, skipped int }
	rows := map[string]*row{}
	var total row
	for _, spec := range specs {
		r := rows[spec.file]
		if r == nil {
			r = &row{}
			rows[spec.file] = r
		}
		known := slices.Contains(s.known, spec.name)
		switch spec.state {
		case "passed":
			r.passed++
			total.passed++
			if known {
				t.Logf("passed, at least this time: %s", spec.name)
			}
		case "skipped":
			r.skipped++
			total.skipped++
			t.Logf("skipped: %s: %s", spec.name, firstLine(spec.failure))
		default:
			r.failed++
			total.failed++
			say := t.Errorf
			if known {
				say = t.Logf
			}
			say("%s: %s (%v)\n%s", spec.state, spec.name, spec.took.Round(time.Second), firstLine(spec.failure))
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| file | passed | failed | skipped |\n|---|--:|--:|--:|\n")
	for _, file := range slices.Sorted(func(yield func(string) bool) {
		for file := range rows {
			if !yield(file) {
				return
			}
		}
	}) {
		r := rows[file]
		fmt.Fprintf(&b, "| %s | %d | %d | %d |\n", file, r.passed, r.failed, r.skipped)
	}
	fmt.Fprintf(&b, "| **all** | **%d** | **%d** | **%d** |\n", total.passed, total.failed, total.skipped)
	t.Logf("Kubernetes %s\n%s", rig.Version, &b)
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}
