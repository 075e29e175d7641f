// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"text/tabwriter"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
)

var (
	runs  = flag.Int("runs", 20, "how often each scenario is run; those that take long have a limit of their own")
	only  = flag.String("only", "", "run this `scenario` only")
	write = flag.Bool("write", false, "write the table to "+resultsFile)
)

func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	klog.SetLogger(klog.Logger{}) // client-go logs every failed attempt
	os.Exit(m.Run())
}

// systems returns the columns of the table, this library first.
func systems() []*system {
	return []*system{onLease(), controlled(), controlledElectors(), builtInWithOurs(), electors(false), electors(true), builtIn(false), builtIn(true)}
}

// tolerance is how much worse a median may be and still count as equal: about
// one request.
const tolerance = 0.02

// noise is how much worse the Controller may be than the API server's if the
// candidates are client-go's. These poll every two to four and a half seconds,
// which dominates their times and the median of a few runs.
const noise = 1.5

// TestCompare runs every scenario with every system and prints the table. It
// checks that OnLease is first in every row, and that this library's Controller
// is ahead of the API server's.
func TestCompare(t *testing.T) {
	all := systems()
	table := newTable(all)
	for _, sc := range scenarios {
		if *only != "" && sc.name != *only {
			continue
		}
		results := measure(t, sc, all)
		for i, row := range sc.rows {
			table.add(row, results[i])
			t.Log(row, results[i])
			compare(t, row, all, results[i])
		}
	}
	fmt.Fprint(t.Output(), table.text())
	if *write && *only == "" {
		if err := os.WriteFile(resultsFile, table.markdown(), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// measure returns the samples by row and system.
func measure(t *testing.T, sc scenario, all []*system) [][]sample {
	results := make([][]sample, len(sc.rows))
	for i := range results {
		results[i] = make([]sample, len(all))
	}
	n := *runs
	if sc.runs > 0 {
		n = min(n, sc.runs)
	}
	n = max(n, sc.least)
	for j, s := range all {
		if sc.preference && !s.prefers || s.only != "" && s.only != sc.name {
			continue
		}
		for seed := range n {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, s, uint64(seed))
				for i, v := range sc.run(w) {
					results[i][j] = append(results[i][j], v)
				}
				w.close()
			})
		}
	}
	return results
}

// compare checks the order of a row: no comparable system is ahead of this
// library.
func compare(t *testing.T, row string, all []*system, results []sample) {
	for i, mine := range all {
		if row == termsRow && mine.ours && len(results[i]) > 0 && slices.Max(results[i]) > 1 {
			t.Errorf("%s: %s of %s, want one", row, figure(slices.Max(results[i])), mine.name)
		}
		for j, other := range all {
			switch {
			case !mine.ours || other.ours || len(results[i]) == 0 || len(results[j]) == 0:
				continue
			case mine.coordinator != nil && other.coordinator == nil:
				continue // the cost of a third party
			case mine.electors && !other.releases:
				continue // different candidates
			case mine.electors && strings.HasPrefix(row, "two leaders"):
				continue // see the note in the table
			}
			limit := results[j].median() + tolerance
			if mine.electors {
				limit += noise
			}
			if median := results[i].median(); median > limit {
				t.Errorf("%s: %s %s, %s %s", row, mine.name, figure(median), other.name, figure(results[j].median()))
			}
		}
	}
}

// sample holds the results of one row and system.
type sample []float64

func (s sample) median() float64 {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[len(sorted)/2]
}

// String returns the median and the worst result.
func (s sample) String() string {
	if len(s) == 0 {
		return "-"
	}
	median, worst := figure(s.median()), figure(slices.Max(s))
	if median == worst {
		return median
	}
	return fmt.Sprintf("%s (%s)", median, worst)
}

func figure(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "never"
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// table is the table that is printed and stored.
type table struct{ rows [][]string }

func newTable(all []*system) *table {
	head := []string{"seconds, unless it says something else: median (worst)"}
	for _, s := range all {
		head = append(head, s.name)
	}
	return &table{[][]string{head}}
}

func (tb *table) add(name string, results []sample) {
	row := []string{name}
	for _, s := range results {
		row = append(row, s.String())
	}
	tb.rows = append(tb.rows, row)
}

func (tb *table) text() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range tb.rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush()
	return b.String()
}

// resultsFile stores the table.
const resultsFile = "README.md"

func (tb *table) markdown() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `# Elections side by side

Written by `+"`go test -run TestCompare . -args -runs %d -write`"+`; do not edit. The package
comment describes the simulation. The systems:

- **OnLease**: candidates of this library, without anything else.
- **Controller**: this library's Controller with its candidates.
- **Controller, client-go**: this library's Controller with candidates such as
  kube-scheduler: client-go's elector in coordinated mode, which releases.
- **API server, our candidates**: the controller of kube-apiserver with this library's
  candidates.
- **client-go**: client-go's elector, without and with ReleaseOnCancel.
- **API server**: the controller of kube-apiserver v1.37.2 behind the gate
  CoordinatedLeaderElection, with candidates such as kube-scheduler, which
  release and which do not.

`, *runs)
	for i, row := range tb.rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintf(&b, "|%s\n", strings.Repeat("---|", len(row)))
		}
	}
	b.WriteString(notes)
	return b.Bytes()
}

// notes follow the table.
const notes = `
Two leaders: if client-go's elector has ReleaseOnCancel and can't renew, it tries
to release the lease before it stops its work. Cut off from the network, it
therefore leads for up to a few seconds after its lease has expired, while another
candidate may already lead. The API server's controller usually elects later than
that.

Many elections: ` + "`go test -run TestServices -v .`" + ` runs 200 elections on three nodes, with the
timing of kube-vip: 5, 3 and 1 s. A candidate with a SharedWatch has 1.35 goroutines and 16 kB,
with a watch of its own 3.34 goroutines and 43 kB, and an elector of client-go 1.34 goroutines
and 8 kB. All candidates send 200 requests a second, the electors 447.

A heap profile of the 16 kB: 6 kB are the stack (an elector has 5), 1.4 kB the Lease with the
records of the other candidates, and 1 kB each the Config, the decisions, and the loop with its
channels. 0.8 kB are the decoded records, 0.6 kB what a goroutine needs to wait for six channels,
0.6 kB the last renewals, which tell a twin apart, and 1.5 kB the in-memory API server. An elector
has 4 kB of heap in all, because it polls, knows no other candidate, and detects no twin. Most of
the difference is what a candidate decides by, so 600 candidates need 5 MB more than 600 electors.

A standby could drop the Lease and keep what it compares. That would save 1.4 kB at most, and it
would need a GET before each claim and each write of its record, because a write is a PUT of the
whole Lease. The fail-over would wait for it, so the Lease stays.
`
