// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/dirlock"
	"github.com/kubewright/kubewright/internal/mounts"
	"github.com/kubewright/kubewright/internal/record"
	"github.com/kubewright/kubewright/internal/rmtree"
	"github.com/kubewright/kubewright/podsync/podenv"
	core "github.com/kubewright/kubewright/podsync/podruntime/internal/container"
)

// ErrRootInUse is returned by Run if another process has Config.Root. Two that ran the same
// pods would start their containers twice.
var ErrRootInUse = errors.New("another process runs pods in this directory; end it, or choose another one")

// A store is the directory of a Provider:
//
//	pods/UID/pod.json              an accepted pod
//	pods/UID/stop.json             the deadline of a pod that is being stopped
//	pods/UID/stop.spare            stop.json without a deadline, for a full disk
//	pods/UID/past.json             the runs before the last restart of the whole pod
//	pods/UID/runs/NAME.N.json      facts about run N of a container that the Runtime does not keep
//	pods/UID/inputs.json           what the containers have read from the API, without Secrets
//	pods/UID/volumes/NAME          see volumes.go
//	pods/UID/memory/NAME           the same for Secrets and tokens, in a tmpfs at memory
//	pods/UID/subpaths/NAME/N       mount points for subPath, by container and its mount
//	pods/UID/messages/NAME         the termination message of the newest run
//	pods/UID/hosts                 /etc/hosts
//	announced                      the process before has announced its end (ProcessBound)
//	pods/UID/containers/NAME       for the Runtime: ContainerSpec.Dir
//	trash                          directories that are being deleted, and drafts
type store struct{ root string }

// podRecord is the content of pod.json. The directory of a pod never exists
// without it.
type podRecord struct {
	Pod      *corev1.Pod `json:"pod"`
	Accepted time.Time   `json:"accepted"`
	// InForce is Pod with the resources that the node has given it, if Pod asks for
	// others.
	InForce *corev1.Pod `json:"inForce,omitempty"`
	// Whole are the resources of the pod as a whole that the Runtime has applied last, if
	// they are not those of InForce.
	Whole *corev1.ResourceRequirements `json:"whole,omitempty"`
}

// stopRecord is the content of stop.json. With it nothing of the pod is started.
type stopRecord struct {
	// Deadline is zero if the disk was full: the end is certain, its time is not.
	Deadline time.Time `json:"deadline,omitzero"`
	// Kept is when Deadline was written. A clock that has been set back since is no reason to
	// wait for longer than the difference.
	Kept time.Time `json:"kept,omitzero"`
}

// due returns the deadline by the present clock.
func (r stopRecord) due(now time.Time) time.Time {
	most := r.Deadline.Sub(r.Kept)
	if r.Kept.IsZero() { // written by an earlier version
		most = r.Deadline.Sub(now)
	}
	return within(r.Deadline, now, most)
}

// within returns a time that another process has written, or the Runtime: it is at most this much later
// than now. The clock may have been set back since. What is returned has the monotonic clock of this
// process, so that later steps of the wall clock do not move it.
func within(at, now time.Time, most time.Duration) time.Time {
	return now.Add(min(at.Sub(now), most))
}

// spareStop writes the file that keepStop renames if the disk is full.
func spareStop(dir string) error {
	return record.Write(filepath.Join(dir, "stop.spare"), stopRecord{})
}

// keepStop writes stop.json. If that fails, it is stop.json without a deadline that
// remains: a rename needs no room.
func keepStop(dir string, deadline time.Time) error {
	path := filepath.Join(dir, "stop.json")
	err := record.Write(path, stopRecord{deadline, time.Now()})
	if err != nil {
		if _, missing := os.Stat(path); missing != nil {
			_ = os.Rename(filepath.Join(dir, "stop.spare"), path)
		}
	}
	return err
}

// pastRecord is the content of past.json: by container name, the newest run that
// does not count because all containers of the pod were started again after it.
type pastRecord struct {
	Runs map[string]int `json:"runs"`
	// Kept has, in the same way, the runs that were done before the last restart and count.
	Kept map[string]int `json:"kept,omitempty"`
	// Rule says that a restart policy rule was the reason, not a lost sandbox.
	Rule bool `json:"rule,omitempty"`
}

func (s store) pods() string               { return filepath.Join(s.root, "pods") }
func (s store) trash() string              { return filepath.Join(s.root, "trash") }
func (s store) pod(uid types.UID) string   { return filepath.Join(s.pods(), string(uid)) }
func (s store) draft(uid types.UID) string { return filepath.Join(s.trash(), "new-"+string(uid)) }

// lock keeps other processes out of the directory until unlock is called.
func (s store) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(s.root, 0o700); err != nil {
		return nil, err
	}
	dir, err := os.Open(s.root)
	if err != nil {
		return nil, err
	}
	unlock = func() { _ = dir.Close() }
	if err = dirlock.Wait(ctx, dir); err == nil {
		return unlock, nil
	}
	unlock()
	if errors.Is(err, dirlock.ErrHeld) {
		err = ErrRootInUse
	}
	return nil, err
}

func (s store) announcement() string { return filepath.Join(s.root, "announced") }

// announceEnd records that the process ends and its containers with it.
func (s store) announceEnd() error { return record.Write(s.announcement(), struct{}{}) }

// announced reports whether the process before has announced its end.
func (s store) announced() bool {
	_, err := os.Stat(s.announcement())
	return err == nil
}

// takeAnnouncement removes the announcement: it is not about the end of this process.
func (s store) takeAnnouncement() error {
	if err := os.Remove(s.announcement()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// emptyTrash deletes what pods have left that ended. What can't be deleted stays, and
// must not keep the node down.
func (s store) emptyTrash() error { return removeTree(s.trash()) }

// open makes the directories and returns the directories of all pods.
func (s store) open() ([]string, error) {
	for _, dir := range []string{s.pods(), s.trash()} {
		// Secrets are below it.
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	entries, err := os.ReadDir(s.pods())
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, e := range entries {
		dirs = append(dirs, filepath.Join(s.pods(), e.Name()))
	}
	return dirs, nil
}

// create makes the directory of a pod with everything that prepare puts into it,
// whole or not at all. One that is there already is kept: it is of a Start that
// failed after it. What prepare mounts in it moves along.
func (s store) create(pod *corev1.Pod, accepted time.Time, prepare func(dir string) error) (dir string, err error) {
	if !isName(pod.UID) {
		return "", fmt.Errorf("podruntime: the UID %q can't be the name of a directory", pod.UID)
	}
	dir = s.pod(pod.UID)
	if s.has(pod.UID) {
		return dir, nil
	}
	draft := s.draft(pod.UID)
	if err := removeTree(draft); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			_ = removeTree(draft)
		}
	}()
	for _, dir := range []string{draft, s.pods()} { // an administrator may remove the directory of all pods while it is empty
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", err
		}
	}
	if err := errors.Join(spareStop(draft), prepare(draft)); err != nil {
		return "", err
	}
	if err := record.Write(filepath.Join(draft, "pod.json"), podRecord{Pod: pod, Accepted: accepted}); err != nil {
		return "", err
	}
	return dir, os.Rename(draft, dir)
}

// isName reports whether a UID can be the name of a directory.
func isName(uid types.UID) bool {
	return filepath.IsLocal(string(uid)) && !strings.ContainsAny(string(uid), `/\`)
}

// has reports whether there is the directory of a pod.
func (s store) has(uid types.UID) bool {
	_, err := os.Stat(filepath.Join(s.pod(uid), "pod.json"))
	return err == nil && isName(uid)
}

// discard moves the directory of a pod to the trash, as a whole, and returns a
// function that deletes it there. The error of that function is about files only: the
// pod is gone, and the next start tries again.
func (s store) discard(uid types.UID) (remove func() error, err error) {
	// A mount can't be renamed away with its directory safely: it goes first.
	if err := mounts.UnmountBelow(s.pod(uid)); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.trash(), 0o700); err != nil {
		return nil, err
	}
	// What an earlier pod of this UID has left may stand there.
	gone, err := os.MkdirTemp(s.trash(), string(uid)+"-")
	if err != nil {
		return nil, err
	}
	if err := os.Rename(s.pod(uid), filepath.Join(gone, "pod")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(err, os.Remove(gone))
	}
	return func() error { return removeTree(gone) }, nil
}

// removeTree deletes a directory, but nothing of a file system mounted below it.
func removeTree(path string) error {
	if err := mounts.UnmountBelow(path); err != nil {
		return err
	}
	return rmtree.Remove(path)
}

// keepInputs writes what the containers of a pod have read.
func keepInputs(dir string, memory *podenv.Memory, sealer podenv.Sealer) error {
	data, err := memory.Encode(sealer)
	if err != nil {
		return err
	}
	return record.Write(inputsFile(dir), json.RawMessage(data))
}

// inputsFile returns the path of the file that keepInputs writes.
func inputsFile(dir string) string { return filepath.Join(dir, "inputs.json") }

// runFile returns the path of a run's record.
func runFile(dir, name string, attempt int) string {
	return filepath.Join(dir, "runs", name+"."+strconv.Itoa(attempt)+".json")
}

// runsOf reads all records of a pod's runs, by container name and attempt.
func runsOf(dir string) (map[string]map[int]core.Record, error) {
	entries, err := os.ReadDir(filepath.Join(dir, "runs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	runs := map[string]map[int]core.Record{}
	for _, e := range entries {
		base, ok := strings.CutSuffix(e.Name(), ".json")
		at := strings.LastIndexByte(base, '.')
		if !ok || at < 0 {
			continue // a draft
		}
		attempt, err := strconv.Atoi(base[at+1:])
		if err != nil {
			continue
		}
		var rec core.Record
		if _, err := record.Read(filepath.Join(dir, "runs", e.Name()), &rec); err != nil {
			return nil, err
		}
		name := base[:at]
		if runs[name] == nil {
			runs[name] = map[int]core.Record{}
		}
		runs[name][attempt] = rec
	}
	return runs, nil
}

// messagePath returns the path of the file with a container's termination message.
func messagePath(dir, name string) string { return filepath.Join(dir, "messages", name) }
