// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"net/http"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// accessReviews returns a new object for a resource of authorization.k8s.io that
// asks the authorizer, or nil. The server answers such a request and stores
// nothing.
func accessReviews(gv schema.GroupVersion, resource string) runtime.Object {
	if gv != authorizationv1.SchemeGroupVersion {
		return nil
	}
	switch resource {
	case "subjectaccessreviews":
		return &authorizationv1.SubjectAccessReview{}
	case "selfsubjectaccessreviews":
		return &authorizationv1.SelfSubjectAccessReview{}
	}
	return nil
}

// review answers a request for a decision of the authorizer.
func (c *call) review(obj runtime.Object) (*answer, error) {
	if c.r.Verb != "create" {
		return nil, methodNotAllowed()
	}
	if err := c.s.authorize(c); err != nil {
		return nil, err
	}
	media := jsonCodec
	if mediaOf(c.r.ContentType) == protobufMedia {
		media = protoCodec
	}
	if _, _, err := media.decoder(false).Decode(c.r.Body, nil, obj); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	var err error
	switch review := obj.(type) {
	case *authorizationv1.SubjectAccessReview:
		user := User{Name: review.Spec.User, Groups: review.Spec.Groups}
		if user.Name == "" && len(user.Groups) == 0 {
			return nil, c.invalidReview("SubjectAccessReview", field.Invalid(field.NewPath("spec", "user"), "", "at least one of user or group must be specified"))
		}
		review.Status, err = c.decide("SubjectAccessReview", user, review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes)
		review.TypeMeta = metav1.TypeMeta{APIVersion: authorizationv1.SchemeGroupVersion.String(), Kind: "SubjectAccessReview"}
	case *authorizationv1.SelfSubjectAccessReview:
		review.Status, err = c.decide("SelfSubjectAccessReview", c.r.User, review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes)
		review.TypeMeta = metav1.TypeMeta{APIVersion: authorizationv1.SchemeGroupVersion.String(), Kind: "SelfSubjectAccessReview"}
	}
	if err != nil {
		return nil, err
	}
	return &answer{code: http.StatusCreated, contentType: c.accept.name, body: c.accept.media.encode(obj)}, nil
}

// decide asks the authorizer in use whether user may do what the attributes
// describe.
func (c *call) decide(kind string, user User, resource *authorizationv1.ResourceAttributes, path *authorizationv1.NonResourceAttributes) (status authorizationv1.SubjectAccessReviewStatus, err error) {
	r := Request{User: user}
	switch {
	case (resource == nil) == (path == nil):
		return status, c.invalidReview(kind, field.Invalid(field.NewPath("spec", "resourceAttributes"), resource, "exactly one of nonResourceAttributes or resourceAttributes must be specified"))
	case resource != nil:
		r.Verb, r.Group, r.Version, r.Resource, r.Subresource = resource.Verb, resource.Group, resource.Version, resource.Resource, resource.Subresource
		r.Namespace, r.Name = resource.Namespace, resource.Name
	default:
		r.Verb, r.Path = path.Verb, path.Path
	}
	if user.in(groupMasters) {
		status.Allowed = true
		return status, nil
	}
	status.Allowed, status.Reason = c.s.authorizerInUse().Authorize(c.s, r)
	return status, nil
}

func (c *call) invalidReview(kind string, problem *field.Error) error {
	return apierrors.NewInvalid(schema.GroupKind{Group: authorizationv1.GroupName, Kind: kind}, "", field.ErrorList{problem})
}
