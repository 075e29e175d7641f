// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"os"
	"regexp"
	"strings"
	"testing"

	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

// The pages for operators and for maintainers name every stage and every call.
func TestThePagesNameStagesAndCalls(t *testing.T) {
	section := func(file, from, to string) string {
		page, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(page), from)
		text, _, found := strings.Cut(rest, to)
		if !found {
			t.Fatalf("%s has nothing between %q and %q", file, from, to)
		}
		return text
	}
	diagram := section("DESIGN.md", "stateDiagram", "```")
	labels := section("../docs/operations.md", "The label `stage`", "\n\n")
	has := func(text, word string) bool { return regexp.MustCompile(`\b` + word + `\b`).MatchString(text) }
	for stage := range coreStages {
		if name := Stage(stage).String(); !has(diagram, name) || !has(labels, name) {
			t.Errorf("the diagram of DESIGN.md or docs/operations.md lacks the stage %s", name)
		}
	}
	if next := Stage(len(coreStages)).String(); !strings.HasPrefix(next, "Invalid") {
		t.Errorf("coreStages lacks the stage %s", next)
	}
	source, err := os.ReadFile("internal/pod/types.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range regexp.MustCompile(`Op = "(\w+)"`).FindAllStringSubmatch(string(source), -1) {
		if _, known := coreOps[core.Op(op[1])]; !known {
			t.Errorf("coreOps lacks %s", op[1])
		}
	}
	for op := range coreOps {
		if !has(labels, string(op)) {
			t.Errorf("docs/operations.md lacks the op %s", op)
		}
	}
}

// The core has words of its own, which are converted as they are.
var (
	coreOps = map[core.Op]Op{
		core.Admit: OpAdmit, core.Annotate: OpAnnotate, core.Start: OpStart, core.Update: OpUpdate, core.Stop: OpStop, core.Release: OpRelease,
		core.Inspect: OpInspect, core.Save: OpSave, core.Remove: OpRemove, core.Patch: OpPatch, core.Delete: OpDelete, core.Get: OpGet,
	}
	coreStages = map[core.Stage]Stage{
		core.Unsynced: StageUnsynced, core.Waiting: StageWaiting, core.Starting: StageStarting, core.Running: StageRunning, core.Terminating: StageTerminating,
		core.Stopped: StageStopped, core.Final: StageFinal, core.Released: StageReleased, core.Orphaned: StageOrphaned,
	}
)

func TestTheCoreHasTheSameWords(t *testing.T) {
	same(t, coreOps, func(op core.Op) Op { return Op(op) })
	same(t, coreStages, func(stage core.Stage) Stage { return Stage(stage) })
	same(t, map[core.StopReason]StopReason{
		core.StopDeleted: StopDeleted, core.StopCompleted: StopCompleted, core.StopEvicted: StopEvicted, core.StopDeadline: StopDeadline,
		core.StopRejected: StopRejected, core.StopLost: StopLost, core.StopOrphaned: StopOrphaned,
	}, func(reason core.StopReason) StopReason { return StopReason(reason) })
	same(t, map[core.LostPolicy]LostPolicy{
		core.LostByRestartPolicy: LostByRestartPolicy, core.LostFail: LostFail, core.LostRestart: LostRestart,
	}, func(policy core.LostPolicy) LostPolicy { return LostPolicy(policy) })
	same(t, map[string]string{
		core.DroppedAfterStop: DroppedAfterStop, core.ReasonFailedStart: ReasonFailedStart, core.ReasonLost: ReasonLost, core.ReasonDeadlineExceeded: ReasonDeadlineExceeded,
	}, func(word string) string { return word })
}

func same[C, W comparable](t *testing.T, words map[C]W, convert func(C) W) {
	t.Helper()
	for word, want := range words {
		if convert(word) != want {
			t.Errorf("the core's %v is %v", word, want)
		}
	}
}
