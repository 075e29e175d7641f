// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubewright/kubewright/internal/record"
)

// A pulledImages remembers who may use the images that were pulled with credentials: an image
// that one tenant's secret has fetched must not be there for another tenant's pod. As with the
// kubelet (KEP-2535), an image that the runtime had before may be used by every pod. Its directory
// has a file for each image, and one for each pull with credentials that is under way.
type pulledImages struct {
	dir string

	mu      sync.Mutex     // guards the files, too
	pulling map[string]int // the pulls of an image that may have left it unaccounted for
}

// A pulledImage is the record of an image.
type pulledImage struct {
	Anyone bool     `json:"anyone,omitempty"` // it was pulled without credentials
	Keys   []string `json:"keys,omitempty"`   // of the credentials that fetched it
	// Pods are the pods that were allowed to use it. They start again while the API server is
	// away and their credentials can't be read.
	Pods []types.UID `json:"pods,omitempty"`
}

func (p *pulledImages) file(kind, of string) string {
	sum := sha256.Sum256([]byte(of))
	return filepath.Join(p.dir, kind+"-"+hex.EncodeToString(sum[:])+".json")
}

// keyOf identifies credentials in a record without revealing them.
func keyOf(auth *runtimeapi.AuthConfig) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q", auth.GetUsername(), auth.GetPassword()))
	return hex.EncodeToString(sum[:])
}

// begin notes a pull with credentials before it is made: if the process is killed after it, the
// image is not one that the runtime had before. An image that the runtime has under that name
// now stays what it is; had is its ID, or empty.
func (p *pulledImages) begin(ref, had string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return err
	}
	_, err := os.Stat(p.file("pulling", ref))
	switch {
	case err == nil && p.pulling[ref] == 0:
		p.pulling[ref] = 1 // that of an earlier process
	case errors.Is(err, os.ErrNotExist) && had != "":
		var rec pulledImage
		found, err := record.Read(p.file("image", had), &rec)
		if err == nil && !found {
			err = record.Write(p.file("image", had), pulledImage{Anyone: true})
		}
		if err != nil {
			return err
		}
	}
	p.pulling[ref]++
	return record.Write(p.file("pulling", ref), struct{}{})
}

// failed takes back a begin: the runtime says that it has not got the image.
func (p *pulledImages) failed(ref string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pulling[ref]--; p.pulling[ref] > 0 {
		return nil
	}
	delete(p.pulling, ref)
	return os.RemoveAll(p.file("pulling", ref))
}

// pulled notes who has pulled an image, and with which credentials; nil: with none.
func (p *pulledImages) pulled(ref, image string, auth *runtimeapi.AuthConfig, pod types.UID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var rec pulledImage
	if _, err := record.Read(p.file("image", image), &rec); err != nil {
		return err
	}
	delete(p.pulling, ref)
	if auth == nil {
		rec = pulledImage{Anyone: true}
	} else {
		rec.add(keyOf(auth), pod)
	}
	return errors.Join(os.MkdirAll(p.dir, 0o700), record.Write(p.file("image", image), rec), os.RemoveAll(p.file("pulling", ref)))
}

func (rec *pulledImage) add(key string, pod types.UID) {
	if !slices.Contains(rec.Keys, key) {
		rec.Keys = append(rec.Keys, key)
	}
	if !slices.Contains(rec.Pods, pod) {
		rec.Pods = append(rec.Pods, pod)
	}
}

// mayUse reports whether a pod may use an image that the runtime has, which it calls ref.
func (p *pulledImages) mayUse(ref, image string, pod types.UID, credentials func() ([]*runtimeapi.AuthConfig, error)) (bool, error) {
	rec, found, err := p.read(image)
	switch {
	case err != nil:
		return false, err
	case !found:
		_, err := os.Stat(p.file("pulling", ref))
		return errors.Is(err, os.ErrNotExist), nil
	case rec.Anyone || slices.Contains(rec.Pods, pod):
		return true, nil
	}
	all, err := credentials()
	if err != nil {
		return false, err
	}
	for _, auth := range all {
		if key := keyOf(auth); slices.Contains(rec.Keys, key) {
			return true, p.pulled(ref, image, auth, pod)
		}
	}
	return false, nil
}

func (p *pulledImages) read(image string) (rec pulledImage, found bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found, err = record.Read(p.file("image", image), &rec)
	return rec, found, err
}

// forgetImage drops the record of an image that was deleted.
func (p *pulledImages) forgetImage(image string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return os.RemoveAll(p.file("image", image))
}

// forgetPod drops a pod that was removed from all records.
func (p *pulledImages) forgetPod(pod types.UID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	images, err := files(filepath.Join(p.dir, "image-"), ".json")
	errs := []error{err}
	for _, file := range images {
		var rec pulledImage
		_, err := record.Read(file, &rec)
		if at := slices.Index(rec.Pods, pod); err == nil && at >= 0 {
			rec.Pods = slices.Delete(rec.Pods, at, at+1)
			err = record.Write(file, rec)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
