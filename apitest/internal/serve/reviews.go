// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"net/http"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/request"
)

// reviews returns a new object for a resource that asks the authorizer, or about a user,
// or nil. The server answers such a request and stores nothing.
func reviews(gv schema.GroupVersion, resource string) runtime.Object {
	switch gv.WithResource(resource) {
	case authorizationv1.SchemeGroupVersion.WithResource("subjectaccessreviews"):
		return &authorizationv1.SubjectAccessReview{}
	case authorizationv1.SchemeGroupVersion.WithResource("selfsubjectaccessreviews"):
		return &authorizationv1.SelfSubjectAccessReview{}
	case authenticationv1.SchemeGroupVersion.WithResource("tokenreviews"):
		return &authenticationv1.TokenReview{}
	case authenticationv1.SchemeGroupVersion.WithResource("selfsubjectreviews"):
		return &authenticationv1.SelfSubjectReview{}
	}
	return nil
}

// review answers a request for a decision of the authorizer.
func (c *Call) review(obj runtime.Object) (*Answer, error) {
	if c.r.Verb != "create" {
		return nil, methodNotAllowed()
	}
	if err := c.authorize(); err != nil {
		return nil, err
	}
	media := codec.JSON
	if codec.MediaOf(c.r.ContentType) == codec.ProtobufType {
		media = codec.Protobuf
	}
	if _, _, err := media.Decoder(false).Decode(c.r.Body, nil, obj); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	var err error
	switch review := obj.(type) {
	case *authorizationv1.SubjectAccessReview:
		user := request.User{Name: review.Spec.User, Groups: review.Spec.Groups}
		if user.Name == "" && len(user.Groups) == 0 {
			return nil, c.invalidReview("SubjectAccessReview", field.Invalid(field.NewPath("spec", "user"), "", "at least one of user or group must be specified"))
		}
		review.Status, err = c.decide("SubjectAccessReview", user, review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes)
		review.TypeMeta = metav1.TypeMeta{APIVersion: authorizationv1.SchemeGroupVersion.String(), Kind: "SubjectAccessReview"}
	case *authorizationv1.SelfSubjectAccessReview:
		review.Status, err = c.decide("SelfSubjectAccessReview", c.r.User, review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes)
		review.TypeMeta = metav1.TypeMeta{APIVersion: authorizationv1.SchemeGroupVersion.String(), Kind: "SelfSubjectAccessReview"}
	case *authenticationv1.TokenReview:
		err = c.reviewToken(review)
		review.TypeMeta = metav1.TypeMeta{APIVersion: authenticationv1.SchemeGroupVersion.String(), Kind: "TokenReview"}
	case *authenticationv1.SelfSubjectReview:
		groups := slices.Clone(c.r.User.Groups)
		if !slices.Contains(groups, request.GroupAuthenticated) {
			groups = append(groups, request.GroupAuthenticated)
		}
		review.Status.UserInfo = authenticationv1.UserInfo{Username: c.r.User.Name, Groups: groups}
		review.TypeMeta = metav1.TypeMeta{APIVersion: authenticationv1.SchemeGroupVersion.String(), Kind: "SelfSubjectReview"}
	}
	if err != nil {
		return nil, err
	}
	return &Answer{Code: http.StatusCreated, ContentType: c.accept.Name, Body: c.accept.Media.Bytes(obj)}, nil
}

// decide asks the authorizer in use whether user may send the described request.
func (c *Call) decide(kind string, user request.User, resource *authorizationv1.ResourceAttributes, path *authorizationv1.NonResourceAttributes) (status authorizationv1.SubjectAccessReviewStatus, err error) {
	r := request.Request{User: user}
	switch {
	case (resource == nil) == (path == nil):
		return status, c.invalidReview(kind, field.Invalid(field.NewPath("spec", "resourceAttributes"), resource, "exactly one of nonResourceAttributes or resourceAttributes must be specified"))
	case resource != nil:
		r.Verb, r.Group, r.Version, r.Resource, r.Subresource = resource.Verb, resource.Group, resource.Version, resource.Resource, resource.Subresource
		r.Namespace, r.Name = resource.Namespace, resource.Name
	default:
		r.Verb, r.Path = path.Verb, path.Path
	}
	status.Allowed, status.Reason = c.s.allowed(&r)
	return status, nil
}

func (c *Call) invalidReview(kind string, problem *field.Error) error {
	return apierrors.NewInvalid(schema.GroupKind{Group: authorizationv1.GroupName, Kind: kind}, "", field.ErrorList{problem})
}
