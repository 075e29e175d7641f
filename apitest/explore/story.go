// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kubewright/kubewright/apitest/internal/plan"
)

// Lines of the journals in a story, and the width of one.
const (
	before = 3
	after  = 32
	effect = 8 // after a note
	width  = 74
)

// story describes a run, with its journal next to that of the reference: lines of it from
// the first difference on.
func (l *lab) story(p plan.Plan, out *outcome, lines int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "plan: %s\n", p)
	for _, problem := range out.problems {
		fmt.Fprintf(&b, "problem: %s\n", strings.ReplaceAll(problem, "\n", "\n    "))
	}
	for _, program := range l.assumed(p) {
		fmt.Fprintf(&b, "takeover assumes that two processes of %s may run at once, and it writes no Lease: leave the fault out if they never do\n", program)
	}
	if out.missed {
		b.WriteString("a place of the plan was not reached, or its fault had no effect\n")
	}
	ref, run := folded(l.ref.journal), folded(out.journal)
	same := 0
	for same < len(ref) && same < len(run) && ref[same].line() == run[same].line() {
		same++
	}
	from := max(0, same-before)
	fmt.Fprintf(&b, "%-*s | %s\n", width, "the run, from the first difference", "the reference")
	for i := from; i < from+lines && (i < len(run) || i < len(ref)); i++ {
		fmt.Fprintf(&b, "%-*s | %s\n", width, column(run, i), column(ref, i))
	}
	b.WriteString(shortened(run, from+lines))
	return strings.TrimRight(b.String(), "\n")
}

// shortened returns the rest of a journal: the notes, what follows each of them, and how
// much is left out in between.
func shortened(run []entry, from int) string {
	var b strings.Builder
	shown, skipped := 0, 0
	for i := from; i < len(run); i++ {
		switch {
		case run[i].program == "":
			shown = effect
		case shown > 0:
			shown--
		default:
			skipped++
			continue
		}
		if skipped > 0 {
			fmt.Fprintf(&b, "%9s %d requests of this run are left out\n", "...", skipped)
			skipped = 0
		}
		b.WriteString(column(run, i) + "\n")
	}
	return b.String()
}

// assumed returns the programs of takeovers that elect no leader in the reference.
func (l *lab) assumed(p plan.Plan) (programs []string) {
	for _, h := range p {
		elects := slices.ContainsFunc(l.ref.journal, func(e *entry) bool {
			verb, target, _ := strings.Cut(e.text, " ")
			return e.program == h.Place.Program && verb != "get" && strings.HasPrefix(target, "leases ")
		})
		if h.Fault == "takeover" && !elects {
			programs = append(programs, h.Place.Program)
		}
	}
	return programs
}

// Numbers and addresses, which differ between plans that have one cause.
var numbers = regexp.MustCompile(`0x[0-9a-f]+|[0-9]+`)

// causeOf returns the cause of a finding, with the program that the first fault hit. A panic
// and an invariant have one cause, whichever program was hit.
func causeOf(line, problem string) string {
	p, err := plan.Parse(line)
	if err != nil || len(p) == 0 || strings.HasPrefix(problem, "panic of") || strings.HasPrefix(problem, "invariant ") {
		return cause(problem)
	}
	return p[0].Place.Program + ": " + cause(problem)
}

// cause returns what problems of one cause have in common: the field that differs, or the
// message and the function of a panic.
func cause(problem string) string {
	first, rest, _ := strings.Cut(problem, "\n")
	switch {
	case strings.Contains(first, " differs from the reference"):
		line, _, _ := strings.Cut(rest, "\n")
		if at := strings.Index(line, ": "); at >= 0 {
			line = line[:at]
		}
		first += " " + line
	case strings.Contains(rest, "goroutine "):
		first += " in " + frame(rest)
	}
	return numbers.ReplaceAllString(first, "N")
}

// frame returns the function that panicked, without its arguments, from a stack.
func frame(stack string) string {
	if _, after, ok := strings.Cut(stack, "\npanic("); ok {
		stack = "\n" + after
	}
	_, stack, _ = strings.Cut(stack, "\n")
	for line := range strings.SplitSeq(stack, "\n") {
		if at := strings.LastIndex(line, "("); at > 0 && !strings.HasPrefix(line, "\t") &&
			!strings.HasPrefix(line, "runtime.") && !strings.HasPrefix(line, "panic(") {
			return line[:at]
		}
	}
	return "an unknown function"
}

// told returns the end of a journal, as lines.
func told(journal []*entry, lines int) string {
	all := folded(journal)
	var b strings.Builder
	for i := max(0, len(all)-lines); i < len(all); i++ {
		b.WriteString(strings.TrimRight(column(all, i), " ") + "\n")
	}
	return b.String()
}

// folded returns a journal with repeated lines as one.
func folded(journal []*entry) (out []entry) {
	times := 1
	for i, e := range journal {
		if i > 0 && e.line() == journal[i-1].line() {
			times++
			out[len(out)-1].times = times
			continue
		}
		times = 1
		out = append(out, *e)
	}
	return out
}

func column(journal []entry, i int) string {
	if i >= len(journal) {
		return ""
	}
	e := journal[i]
	text := fmt.Sprintf("%9s %s", e.at.Round(time.Millisecond), e.line())
	times := ""
	if e.times > 1 {
		times = fmt.Sprintf(" (%d times)", e.times)
	}
	if len(text)+len(times) > width && e.program != "" {
		end := " " + e.result + times
		if len(end) > width/2 { // the text of an error
			text += times
			return text[:width-3] + "..."
		}
		return strings.TrimSuffix(text, " "+e.result)[:width-3-len(end)] + "..." + end
	}
	return text + times
}
