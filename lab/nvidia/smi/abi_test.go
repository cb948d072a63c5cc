// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// The library declares NVML's structures itself; callers come with NVIDIA's header. A field that is off by four bytes shows
// as a wrong number somewhere else.
func TestStructuresAreNVMLs(t *testing.T) {
	want := map[string]uintptr{
		"struct nvml_pci_info":             unsafe.Sizeof(nvml.PciInfo{}),
		"struct nvml_pci_info.bus_id":      unsafe.Offsetof(nvml.PciInfo{}.BusId),
		"struct nvml_pci_info_ext":         unsafe.Sizeof(nvml.PciInfoExt_v1{}),
		"struct nvml_memory":               unsafe.Sizeof(nvml.Memory{}),
		"struct nvml_memory_v2":            unsafe.Sizeof(nvml.Memory_v2{}),
		"struct nvml_memory_v2.free":       unsafe.Offsetof(nvml.Memory_v2{}.Free),
		"struct nvml_bar1":                 unsafe.Sizeof(nvml.BAR1Memory{}),
		"struct nvml_utilization":          unsafe.Sizeof(nvml.Utilization{}),
		"struct nvml_attributes":           unsafe.Sizeof(nvml.DeviceAttributes{}),
		"struct nvml_attributes.memory_mb": unsafe.Offsetof(nvml.DeviceAttributes{}.MemorySizeMB),
		"struct nvml_gi_profile":           unsafe.Sizeof(nvml.GpuInstanceProfileInfo{}),
		"struct nvml_gi_profile_v2":        unsafe.Sizeof(nvml.GpuInstanceProfileInfo_v2{}),
		"struct nvml_gi_profile_v2.name":   unsafe.Offsetof(nvml.GpuInstanceProfileInfo_v2{}.Name),
		"struct nvml_gi_profile_v3":        unsafe.Sizeof(nvml.GpuInstanceProfileInfo_v3{}),
		"struct nvml_gi_profile_v3.name":   unsafe.Offsetof(nvml.GpuInstanceProfileInfo_v3{}.Name),
		"struct nvml_placement":            unsafe.Sizeof(nvml.GpuInstancePlacement{}),
		"struct nvml_ci_profile":           unsafe.Sizeof(nvml.ComputeInstanceProfileInfo{}),
		"struct nvml_ci_profile_v2":        unsafe.Sizeof(nvml.ComputeInstanceProfileInfo_v2{}),
		"struct nvml_ci_profile_v2.name":   unsafe.Offsetof(nvml.ComputeInstanceProfileInfo_v2{}.Name),
		"struct nvml_ci_profile_v3":        unsafe.Sizeof(nvml.ComputeInstanceProfileInfo_v3{}),
		"struct nvml_event.data":           8 + 8, // go-nvml's has Go types in it
	}
	var program strings.Builder
	program.WriteString("#include <stddef.h>\n#include <stdio.h>\n#include \"nvml.h\"\nint main(void) {\n")
	for name := range want {
		structure, field, _ := strings.Cut(name, ".")
		expression := fmt.Sprintf("sizeof(%s)", structure)
		if field != "" {
			expression = fmt.Sprintf("offsetof(%s, %s)", structure, field)
		}
		fmt.Fprintf(&program, "\tprintf(\"%s=%%zu\\n\", %s);\n", name, expression)
	}
	program.WriteString("}\n")

	directory := t.TempDir()
	source, binary := filepath.Join(directory, "sizes.c"), filepath.Join(directory, "sizes")
	if err := os.WriteFile(source, []byte(program.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-I../nvml", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	out, err := exec.Command(binary).Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(out)) {
		var have uintptr
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if _, err := fmt.Sscan(value, &have); err != nil {
			t.Fatal(err)
		}
		if have != want[name] {
			t.Errorf("%s: want %d, have %d", name, want[name], have)
		}
		seen++
	}
	if seen != len(want) {
		t.Errorf("want %d answers, have %d", len(want), seen)
	}
}
