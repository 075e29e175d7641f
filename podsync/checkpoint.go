// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/durable"
	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

// A Checkpoint stores the pods that the node has accepted and that have not ended, so that
// they can start while the API server can't be reached. Its methods are called concurrently,
// but not for one pod. Save and Remove get a context with a deadline of ten seconds, and should
// return when it is done: until they return no other call is made for the pod. An error of Save
// fails the call of Start that it belongs to, which is repeated. [CheckpointDir] is one. A
// Checkpoint that implements io.Closer is closed when Run returns.
type Checkpoint interface {
	// Load returns all records. An error is reported; the records that come with it count.
	Load(ctx context.Context) (map[types.UID][]byte, error)
	// Save replaces the record of a pod. It must survive a power cut when Save returns nil.
	// After an error the record may be the old one or the new one.
	Save(ctx context.Context, uid types.UID, record []byte) error
	// Remove removes the record of a pod. A missing one is no error.
	Remove(ctx context.Context, uid types.UID) error
}

// A record is the content of a Checkpoint about one pod.
type record struct {
	Pod *corev1.Pod `json:"pod"`
	// LostSince is the time since which the provider's List leaves out the pod, if too many
	// are left out to believe it.
	LostSince *time.Time `json:"lostSince,omitempty"`
	// End is why the pod ends, if it does.
	End *core.End `json:"end,omitempty"`
}

var crcTable = crc32.MakeTable(crc32.Castagnoli)

// recordHeader is the first line of a record, with the checksum of the rest.
const recordHeader = "kubewright pod 1 %08x\n"

// encode returns the bytes of the record.
func (r *record) encode() ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return append(fmt.Appendf(nil, recordHeader, crc32.Checksum(body, crcTable)), body...), nil
}

// decodeRecord is the inverse of encode.
func decodeRecord(uid types.UID, data []byte) (*record, error) {
	header, body, _ := bytes.Cut(data, []byte("\n"))
	if string(header)+"\n" != fmt.Sprintf(recordHeader, crc32.Checksum(body, crcTable)) {
		return nil, errors.New("its checksum is wrong")
	}
	r := &record{}
	if err := json.Unmarshal(body, r); err != nil {
		return nil, err
	}
	if r.Pod == nil || r.Pod.UID != uid {
		return nil, errors.New("it is about another pod")
	}
	return r, nil
}

// recordSuffix ends the names of the files of CheckpointDir. maxRecord is more than the API
// server stores of a pod.
const (
	recordSuffix = ".pod"
	maxRecord    = 8 << 20
)

// CheckpointDir returns a Checkpoint of one file for each pod, in a directory that it creates.
// Its parent must exist. A power cut at any moment leaves each record as it was or as it
// became. The directory is locked until Run returns: a second process gets an error from Load,
// and then from each Save. The files may have secrets, because a pod's environment may, and
// only the user of the process can read them. An operation on a file does not end with its
// context. If the disk hangs, Run returns when the disk answers.
func CheckpointDir(path string) Checkpoint { return checkpointOn(durable.Dir(path)) }

func checkpointOn(disk durable.FS) *checkpointDir {
	return &checkpointDir{disk: disk, open: errors.New("the checkpoint is not loaded")}
}

type checkpointDir struct {
	disk durable.FS

	mu   sync.Mutex
	open error // nil if it is open
}

// Load implements Checkpoint.
func (d *checkpointDir) Load(context.Context) (map[types.UID][]byte, error) {
	d.mu.Lock()
	d.open = d.disk.Open()
	err := d.open
	d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	durable.RemoveLeftovers(d.disk, ".")
	err = d.disk.SyncDir("..")
	names, e := d.disk.ReadDir(".")
	err = errors.Join(err, e)
	records := map[types.UID][]byte{}
	for _, name := range names {
		uid, ok := strings.CutSuffix(name, recordSuffix)
		if !ok {
			continue
		}
		data, e := d.disk.ReadFile(name, maxRecord)
		if e != nil {
			err = errors.Join(err, e)
			data = nil // the record exists, and can't be read
		}
		records[types.UID(uid)] = data
	}
	return records, err
}

// name returns the name of the file of a pod.
func (d *checkpointDir) name(uid types.UID) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open != nil {
		return "", d.open
	}
	if uid == "" || uid[0] == '.' || strings.ContainsAny(string(uid), "/\\:\x00") {
		return "", fmt.Errorf("the UID %q is no name of a file", uid)
	}
	return string(uid) + recordSuffix, nil
}

// Save implements Checkpoint.
func (d *checkpointDir) Save(_ context.Context, uid types.UID, record []byte) error {
	name, err := d.name(uid)
	if err != nil {
		return err
	}
	return durable.Replace(d.disk, name, record)
}

// Remove implements Checkpoint.
func (d *checkpointDir) Remove(_ context.Context, uid types.UID) error {
	name, err := d.name(uid)
	if err != nil {
		return err
	}
	if err := d.disk.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return d.disk.SyncDir(".")
}

// Close implements io.Closer.
func (d *checkpointDir) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open != nil {
		return nil
	}
	d.open = errors.New("the checkpoint is closed")
	return d.disk.Close()
}

var _ io.Closer = (*checkpointDir)(nil)
