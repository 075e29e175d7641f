// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// An ImageGC says when images that no container uses are deleted. The zero value is
// never.
type ImageGC struct {
	// High and Low are percentages of the file system with the images. If more than
	// High is used, images are deleted until Low is reached.
	High, Low int
	// MinAge is the time for which an image must have been unused.
	MinAge time.Duration
	// Keep are the names or IDs of images that are never deleted. That of sandboxes need not
	// be among them if the runtime pins it, or is containerd.
	Keep []string
}

// gcInterval is the time between two looks at the file system.
const gcInterval = 5 * time.Minute

// RunImageGC deletes images until ctx is done.
func (r *Runtime) RunImageGC(ctx context.Context, gc ImageGC) error {
	used := map[string]time.Time{} // by image: when it was seen in use last
	for gc.High > 0 && sleep(ctx, gcInterval) {
		over, err := r.overUse(ctx, gc)
		if err == nil {
			_, err = r.collectImages(ctx, gc, used, over, time.Now())
		}
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Unused images are still there")
		}
	}
	<-ctx.Done()
	return nil
}

// overUse returns the number of bytes to free.
func (r *Runtime) overUse(ctx context.Context, gc ImageGC) (uint64, error) {
	info, err := r.images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return 0, err
	}
	if len(info.ImageFilesystems) == 0 {
		return 0, fmt.Errorf("the runtime does not say where its images are")
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(info.ImageFilesystems[0].GetFsId().GetMountpoint(), &fs); err != nil {
		return 0, err
	}
	return gc.excess(fs.Blocks*uint64(fs.Bsize), fs.Bavail*uint64(fs.Bsize)), nil
}

// excess returns the number of bytes to free in a file system.
func (gc ImageGC) excess(capacity, available uint64) uint64 {
	used := capacity - min(available, capacity)
	if used*100 < capacity*uint64(gc.High) {
		return 0
	}
	return used - min(used, capacity*uint64(gc.Low)/100)
}

// collectImages deletes unused images, those first that were used the longest ago,
// until excess bytes are free. It returns the number of bytes freed.
func (r *Runtime) collectImages(ctx context.Context, gc ImageGC, used map[string]time.Time, excess uint64, now time.Time) (freed uint64, err error) {
	images, err := r.images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return 0, err
	}
	sandbox, err := r.sandboxImage(ctx)
	if err != nil {
		return 0, err
	}
	keep := append(slices.Clone(gc.Keep), sandbox)
	// All containers of the runtime count, also those of others.
	containers, err := r.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return 0, err
	}
	var unused []*runtimeapi.Image
	for _, i := range images.Images {
		inUse := i.Pinned || slices.ContainsFunc(keep, func(name string) bool { return name == i.Id || slices.Contains(i.RepoTags, name) }) ||
			slices.ContainsFunc(containers.Containers, func(c *runtimeapi.Container) bool {
				return c.ImageRef == i.Id || c.ImageId == i.Id || c.GetImage().GetImage() == i.Id || slices.Contains(i.RepoDigests, c.ImageRef)
			})
		if last, ok := used[i.Id]; inUse || !ok {
			used[i.Id] = now // an image that is new may have been pulled for a container
		} else if now.Sub(last) >= gc.MinAge {
			unused = append(unused, i)
		}
	}
	maps.DeleteFunc(used, func(id string, _ time.Time) bool {
		return !slices.ContainsFunc(images.Images, func(i *runtimeapi.Image) bool { return i.Id == id })
	})
	slices.SortStableFunc(unused, func(a, b *runtimeapi.Image) int { return used[a.Id].Compare(used[b.Id]) })
	var errs []error
	for _, i := range unused {
		if freed >= excess {
			break
		}
		if _, err := r.images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: i.Id}}); err != nil {
			errs = append(errs, fmt.Errorf("image %s: %w", i.Id, err)) // for example one of a container that the CRI does not list
			continue
		}
		klog.FromContext(ctx).V(2).Info("An unused image was deleted", "image", i.Id, "tags", i.RepoTags, "bytes", i.Size)
		errs = append(errs, r.pulledImages.forgetImage(i.Id))
		freed += i.Size
		delete(used, i.Id)
	}
	return freed, errors.Join(errs...)
}

// sleep waits, and reports whether ctx has not ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
