// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kubewright/kubewright/internal/apierr"
	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

// errAnswer is the error of an answer that can be decoded but lacks required fields,
// such as an empty object from a proxy.
var errAnswer = errors.New("podsync: the API server's answer is not about the pod")

// errUnconfirmed is the error of an instance that is kept because the API does
// not say whether its pod exists.
var errUnconfirmed = errors.New("the credentials can't see whether its pod exists, and State.NodeName does not say that it was started for this node")

// pin makes a patch conditional on the version from which it was computed. Changes of
// the phase are pinned: a pod that another client has ended must not become Running
// by a patch that was in flight. Other patches are not, because components that write
// different conditions would conflict.
func pin(body []byte, version string) []byte {
	rest, ok := bytes.CutPrefix(body, []byte(`{"metadata":{`))
	if !ok || version == "" {
		return body
	}
	return slices.Concat([]byte(`{"metadata":{"resourceVersion":`), strconv.AppendQuote(nil, version), []byte(`,`), rest)
}

// annotate adds annotations to a patch. body is nil if the status needs no patch.
func annotate(body []byte, pod *corev1.Pod, annotations map[string]string) []byte {
	if len(annotations) == 0 {
		return body
	}
	if body == nil {
		body = slices.Concat([]byte(`{"metadata":{"uid":`), strconv.AppendQuote(nil, string(pod.UID)), []byte(`}}`))
	}
	encoded, err := json.Marshal(annotations)
	rest, ok := bytes.CutPrefix(body, []byte(`{"metadata":{`))
	if err != nil || !ok {
		return body // can't happen
	}
	return slices.Concat([]byte(`{"metadata":{"annotations":`), encoded, []byte(`,`), rest)
}

// isInstanceGone reports whether a PATCH failed because the pod, or the pod of
// this UID, does not exist. The API server calls the latter an attempt to change
// an immutable field.
func isInstanceGone(err error, name string) bool {
	return isPodMissing(err, name) || isInvalidField(err, func(field string) bool { return field == "metadata.uid" })
}

// isInvalidField reports whether the API server calls a wanted field invalid.
func isInvalidField(err error, wanted func(field string) bool) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && apierrors.IsInvalid(err) && status.Status().Details != nil &&
		slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return wanted(c.Field) })
}

// isAboutStatus reports whether a PATCH failed because the status itself is invalid or too
// large. An admission policy or a webhook answers 422 or 400 too, and a proxy 400: what they
// refuse now they may accept later.
func isAboutStatus(err error) bool {
	return apierrors.IsRequestEntityTooLargeError(err) ||
		isInvalidField(err, func(field string) bool { return strings.HasPrefix(field, "status") })
}

// isAboutAnnotations reports whether a PATCH failed because its annotations are invalid or
// too large.
func isAboutAnnotations(err error) bool {
	return isInvalidField(err, func(field string) bool { return strings.HasPrefix(field, "metadata.annotations") })
}

// isPodMissing reports whether a 404 is about this pod. A proxy's is not, and a missing
// pod is stopped.
func isPodMissing(err error, name string) bool { return apierr.IsMissing(err, "pods", name) }

// getPod reads the pod from the API, not from a cache. The result is nil if the pod of
// this UID does not exist.
//
// The credentials of a node may read only the node's pods. The answer about any
// other pod, whether it exists or not, is 403. They may list the pods of the
// node, and a pod never changes its node: if node is the pod's node, a LIST
// without the pod says that it is gone. If node is "", the error is
// errUnconfirmed.
func getPod(ctx context.Context, client corev1client.PodsGetter, ref Ref, node string) (*corev1.Pod, error) {
	pods := client.Pods(ref.Namespace)
	pod, err := pods.Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsForbidden(err) {
		if node == "" {
			return nil, errUnconfirmed
		}
		list, listErr := pods.List(ctx, metav1.ListOptions{FieldSelector: fields.Set{
			"metadata.name": ref.Name, "spec.nodeName": node,
		}.String()})
		switch {
		case listErr != nil:
			return nil, listErr
		case list.ResourceVersion == "":
			return nil, errAnswer
		case len(list.Items) == 0:
			return nil, nil
		}
		pod, err = &list.Items[0], nil
	}
	if isPodMissing(err, ref.Name) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	switch pod.UID {
	case ref.UID:
	case "":
		return nil, errAnswer
	default:
		return nil, nil
	}
	pod.ManagedFields = nil
	return pod, nil
}

// failureOf returns the meaning of an error of the API that may go away.
func failureOf(err error) core.WriteFailed {
	class := apierr.Classify(err)
	return core.WriteFailed{
		MayBeStored: apierr.MayHaveCommitted(err),
		Unanswered:  class == apierr.Timeout || class == apierr.Unreachable,
		After:       apierr.RetryAfter(err),
	}
}
