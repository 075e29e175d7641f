// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// fill sets every field below v to a value that is not zero.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Interface().(type) {
	case resource.Quantity:
		v.Set(reflect.ValueOf(resource.MustParse(fmt.Sprint(*n))))
		return
	case metav1.Time:
		v.Set(reflect.ValueOf(metav1.NewTime(time.Unix(int64(*n), 0))))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 2 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(key, n)
			fill(value, n)
			v.SetMapIndex(key, value)
		}
	case reflect.String:
		v.SetString(fmt.Sprint("s", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n))
	default:
		panic(v.Type())
	}
}

// TestConversionKeepsEveryField compares the JSON of the two versions, whose
// field names are the same.
func TestConversionKeepsEveryField(t *testing.T) {
	var from resourcev1.ResourceSlice
	from.Name, from.ResourceVersion = "s1", "7"
	n := 0
	fill(reflect.ValueOf(&from.Spec).Elem(), &n)
	if n < 100 {
		t.Fatalf("only %d fields", n)
	}
	there := toV1beta2(&from)
	if diff := cmp.Diff(toJSON(t, from), toJSON(t, there)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(toJSON(t, from), toJSON(t, fromV1beta2(there))); diff != "" {
		t.Error(diff)
	}
	var beta resourcev1beta2.ResourceSlice
	beta.Labels = map[string]string{"a": "b"}
	fill(reflect.ValueOf(&beta.Spec).Elem(), new(int))
	if diff := cmp.Diff(toJSON(t, beta), toJSON(t, fromV1beta2(&beta))); diff != "" {
		t.Error(diff)
	}
}

func toJSON(t *testing.T, v any) (decoded any) {
	t.Helper()
	b, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(b, &decoded)
	}
	if err != nil {
		t.Fatal(err)
	}
	return decoded
}

// TestEachVersionWritesAndReads sends every request in each version.
func TestEachVersionWritesAndReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		s.Serve(resourcev1beta2.SchemeGroupVersion, true)
		for i, v := range All(s.Client(apitest.User{}).ResourceV1(), s.Client(apitest.User{}).ResourceV1beta2(), "tester") {
			if v.Name != Names[i] {
				t.Errorf("version %d is %s, want %s", i, v.Name, Names[i])
			}
			slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s-" + v.Name}, Spec: resourcev1.ResourceSliceSpec{
				Driver: "d.example.com", NodeName: new("n1"), Pool: resourcev1.ResourcePool{Name: "n1", Generation: 1, ResourceSliceCount: 1},
			}}
			if got, err := v.Write(t.Context(), slice, true); err != nil || got.Spec.Driver != slice.Spec.Driver {
				t.Errorf("%s: dry run: %v, %v", v.Name, got, err)
			}
			if _, err := v.Get(t.Context(), slice.Name); !apierrors.IsNotFound(err) || Gone(err, slice.Name) {
				t.Errorf("%s: the dry run stored the slice: %v", v.Name, err)
			}
			created, err := v.Write(t.Context(), slice, false)
			if err != nil {
				t.Fatal(err)
			}
			if len(created.ManagedFields) == 0 || created.ManagedFields[0].Manager != "tester" {
				t.Errorf("%s: managed fields %v", v.Name, created.ManagedFields)
			}
			created.Spec.Devices = []resourcev1.Device{{Name: "d1", BindsToNode: new(true)}}
			if got, err := v.Write(t.Context(), created, true); err != nil || len(got.Spec.Devices) != 1 {
				t.Errorf("%s: dry run: %v, %v", v.Name, got, err)
			}
			if _, err := v.Write(t.Context(), created, false); err != nil {
				t.Errorf("%s: %v", v.Name, err)
			}
			got, err := v.Get(t.Context(), slice.Name)
			if err != nil || len(got.Spec.Devices) != 1 || !*got.Spec.Devices[0].BindsToNode {
				t.Errorf("%s: got %+v, %v", v.Name, got, err)
			}
			list, err := v.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.driver=d.example.com"})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := v.Convert(list); err == nil {
				t.Errorf("%s: a list was converted", v.Name)
			}
			listed, err := meta.ExtractList(list)
			if err != nil || len(listed) != 1 {
				t.Fatalf("%s: listed %v, %v", v.Name, listed, err)
			}
			if got, err := v.Convert(listed[0]); err != nil || got.Name != slice.Name || len(got.Spec.Devices) != 1 {
				t.Errorf("%s: listed %+v, %v", v.Name, got, err)
			}
			if err := v.Delete(t.Context(), slice.Name, metav1.DeleteOptions{}); err != nil {
				t.Errorf("%s: %v", v.Name, err)
			}
		}
	})
}

// emptyAnswers is a client whose answers are empty objects, as a proxy makes them up.
type emptyAnswers struct {
	slicesClient[*resourcev1.ResourceSlice, *resourcev1.ResourceSliceList]
}

func (emptyAnswers) Get(context.Context, string, metav1.GetOptions) (*resourcev1.ResourceSlice, error) {
	return &resourcev1.ResourceSlice{}, nil
}

func (emptyAnswers) Create(context.Context, *resourcev1.ResourceSlice, metav1.CreateOptions) (*resourcev1.ResourceSlice, error) {
	return &resourcev1.ResourceSlice{}, nil
}

func (emptyAnswers) Update(context.Context, *resourcev1.ResourceSlice, metav1.UpdateOptions) (*resourcev1.ResourceSlice, error) {
	return &resourcev1.ResourceSlice{}, nil
}

func TestAnEmptyAnswerIsAnError(t *testing.T) {
	v := newVersion("v1", emptyAnswers{}, "tester", same, same)
	if got, err := v.Get(t.Context(), "s1"); !errors.Is(err, apierr.ErrAnswer) {
		t.Errorf("Get: %v, %v, want ErrAnswer", got, err)
	}
	for _, resourceVersion := range []string{"", "7"} {
		slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s1", ResourceVersion: resourceVersion}}
		if got, err := v.Write(t.Context(), slice, false); !errors.Is(err, apierr.ErrAnswer) {
			t.Errorf("Write at %q: %v, %v, want ErrAnswer", resourceVersion, got, err)
		}
	}
}

func TestGone(t *testing.T) {
	status := func(code int32, details *metav1.StatusDetails) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Reason: metav1.StatusReasonNotFound, Details: details}}
	}
	object := &metav1.StatusDetails{Name: "s1", Kind: "resourceslices"}
	proxy := &metav1.StatusDetails{Name: "s1", Kind: "resourceslices", Causes: []metav1.StatusCause{{Type: metav1.CauseTypeUnexpectedServerResponse}}}
	for name, tc := range map[string]struct {
		err  error
		name string // of the slice, empty for a list
		want bool
	}{
		"no error":                  {nil, "", false},
		"another error":             {statuserr.InternalError("x"), "", false},
		"not a status":              {errors.New("not found"), "", false},
		"an object":                 {status(http.StatusNotFound, object), "s1", false},
		"an object, but of a list":  {status(http.StatusNotFound, object), "", true},
		"no object, of a list":      {status(http.StatusNotFound, &metav1.StatusDetails{Kind: "resourceslices"}), "", true},
		"no details":                {status(http.StatusNotFound, nil), "s1", true},
		"no name":                   {status(http.StatusNotFound, &metav1.StatusDetails{Kind: "k"}), "s1", true},
		"no kind":                   {status(http.StatusNotFound, &metav1.StatusDetails{Name: "s1"}), "s1", true},
		"another object":            {status(http.StatusNotFound, &metav1.StatusDetails{Name: "n1", Kind: "nodes"}), "s1", true},
		"the answer of a proxy":     {status(http.StatusNotFound, proxy), "s1", true},
		"wrapped, about an object":  {fmt.Errorf("x: %w", status(http.StatusNotFound, object)), "s1", false},
		"wrapped, about no objects": {fmt.Errorf("x: %w", status(http.StatusNotFound, nil)), "s1", true},
	} {
		if got := Gone(tc.err, tc.name); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
