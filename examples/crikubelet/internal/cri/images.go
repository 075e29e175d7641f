// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubewright/kubewright/podsync/podruntime"
)

// Pull implements podruntime.Puller. Its errors have the kubelet's reasons.
func (r *Runtime) Pull(ctx context.Context, pod *corev1.Pod, c *corev1.Container) error {
	spec, image, err := r.image(ctx, c)
	if err != nil {
		return err
	}
	policy := c.ImagePullPolicy
	if policy == "" {
		policy = corev1.PullIfNotPresent
	}
	switch {
	case image != nil && policy != corev1.PullAlways:
		allowed, err := r.pulledImages.mayUse(spec.Image, image.Id, pod.UID, func() ([]*runtimeapi.AuthConfig, error) { return r.credentials(ctx, pod, spec.Image) })
		switch {
		case allowed || err != nil && policy == corev1.PullNever:
			return err
		case err != nil:
			return &podruntime.StartError{Reason: "ErrImagePull", BackoffReason: "ImagePullBackOff", Err: err}
		case policy == corev1.PullNever:
			return &podruntime.StartError{Reason: "ErrImageNeverPull", Err: fmt.Errorf("container image %q was pulled with credentials that the pod does not have", c.Image)}
		}
	case policy == corev1.PullNever:
		return &podruntime.StartError{Reason: "ErrImageNeverPull", Err: fmt.Errorf("container image %q is not present with pull policy of Never", c.Image)}
	}
	if err := r.pull(ctx, pod, spec, image.GetId()); err != nil {
		return &podruntime.StartError{Reason: "ErrImagePull", BackoffReason: "ImagePullBackOff", Err: err}
	}
	return nil
}

// pulled returns the image of a container after Pull.
func (r *Runtime) pulled(ctx context.Context, c *corev1.Container) (*runtimeapi.Image, error) {
	_, image, err := r.image(ctx, c)
	if err == nil && image == nil {
		err = &podruntime.StartError{Reason: "ImageInspectError", Err: fmt.Errorf("the image %q was pulled and is not there", c.Image)}
	}
	return image, err
}

// image returns the image of a container, nil if the runtime does not have it.
func (r *Runtime) image(ctx context.Context, c *corev1.Container) (*runtimeapi.ImageSpec, *runtimeapi.Image, error) {
	ref, err := reference(c.Image)
	if err != nil {
		return nil, nil, &podruntime.StartError{Reason: "InvalidImageName", Err: err}
	}
	spec := &runtimeapi.ImageSpec{Image: ref, UserSpecifiedImage: c.Image}
	answer, err := r.images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec})
	if err != nil {
		return nil, nil, &podruntime.StartError{Reason: "ImageInspectError", Err: err}
	}
	return spec, answer.Image, nil
}

// pull pulls an image with each of the pod's credentials for its registry, until one
// is accepted. Without credentials it is pulled anonymously. had is the ID of the image that
// the runtime has, or empty. A registry that sends nothing, or a byte now and then, has a place
// of a pull until Config.PullTimeout.
func (r *Runtime) pull(ctx context.Context, pod *corev1.Pod, spec *runtimeapi.ImageSpec, had string) error {
	credentials, err := r.credentials(ctx, pod, spec.Image)
	if err != nil {
		return err
	}
	if err := r.pulls.enter(ctx, pod.Namespace); err != nil {
		return err
	}
	defer r.pulls.leave(pod.Namespace)
	ctx, cancel := context.WithTimeout(ctx, r.cfg.PullTimeout)
	defer cancel()
	if len(credentials) == 0 {
		credentials = []*runtimeapi.AuthConfig{nil}
	}
	var errs []error
	for _, auth := range credentials {
		if auth != nil {
			if err := r.pulledImages.begin(spec.Image, had); err != nil {
				return err
			}
		}
		_, err := r.images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec, Auth: auth, SandboxConfig: r.sandboxConfig(pod, "")})
		if err == nil {
			var answer *runtimeapi.ImageStatusResponse // which has its ID, whatever PullImage calls it
			if answer, err = r.images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec}); err == nil && answer.Image != nil {
				return r.pulledImages.pulled(spec.Image, answer.Image.Id, auth, pod.UID)
			}
		} else if auth != nil && answered(err) {
			err = errors.Join(err, r.pulledImages.failed(spec.Image))
		}
		errs = append(errs, err)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		errs = append(errs, fmt.Errorf("the image was not pulled within %v", r.cfg.PullTimeout))
	}
	return errors.Join(errs...)
}

// A pullPlaces limits the pulls at once to max. A namespace gets a place only while more are
// free than it has: one whose registries hang has half of them if it is alone, and the more
// are taken, the fewer the next one can take.
type pullPlaces struct {
	max int

	mu      sync.Mutex
	all     int
	of      map[string]int // by namespace
	changed chan struct{}  // closed by the next leave
}

func newPullPlaces(max int) *pullPlaces {
	return &pullPlaces{max: max, of: map[string]int{}, changed: make(chan struct{})}
}

// enter waits for a place, or for the end of ctx.
func (p *pullPlaces) enter(ctx context.Context, namespace string) error {
	for {
		p.mu.Lock()
		if p.of[namespace] < p.max-p.all {
			p.all++
			p.of[namespace]++
			p.mu.Unlock()
			return nil
		}
		changed := p.changed
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// leave gives a place back.
func (p *pullPlaces) leave(namespace string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all--
	if p.of[namespace]--; p.of[namespace] == 0 {
		delete(p.of, namespace)
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// answered reports whether an error of a call is the answer of the runtime. Otherwise the
// runtime may still do what it was asked for.
func answered(err error) bool {
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable:
		return false
	}
	return true
}

// reference returns the name of an image with its tag.
func reference(image string) (string, error) {
	if image == "" || strings.ContainsAny(image, " \t\n") || strings.ToLower(repository(image)) != repository(image) {
		return "", fmt.Errorf("couldn't parse image name %q: invalid reference format", image)
	}
	if image != repository(image) {
		return image, nil
	}
	return image + ":latest", nil
}

// repository returns the name of an image without its tag and digest.
func repository(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if at := strings.LastIndexByte(image, ':'); at > strings.LastIndexByte(image, '/') {
		image = image[:at]
	}
	return image
}
