package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
)

// partition puts a GPU of the mock into MIG mode, with these profiles on it.
func partition(server *dgxa100.Server, index int, profiles ...string) {
	gpu := server.Devices[index].(*dgxa100.Device)
	gpu.GetMigModeFunc = func() (int, int, nvml.Return) {
		return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS
	}
	gpu.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	gpu.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i >= len(profiles) {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return &mock.Device{
			GetUUIDFunc: func() (string, nvml.Return) { return fmt.Sprintf("MIG-%d-%d", index, i), nvml.SUCCESS },
			GetNameFunc: func() (string, nvml.Return) {
				return "NVIDIA A100-SXM4-40GB MIG " + profiles[i], nvml.SUCCESS
			},
			GetGpuInstanceIdFunc:     func() (int, nvml.Return) { return 7 + i, nvml.SUCCESS },
			GetComputeInstanceIdFunc: func() (int, nvml.Return) { return 0, nvml.SUCCESS },
		}, nvml.SUCCESS
	}
}

func a100s(count int) *dgxa100.Server {
	server := dgxa100.New()
	server.DeviceGetCountFunc = func() (int, nvml.Return) { return count, nvml.SUCCESS }
	for _, handle := range server.Devices {
		gpu := handle.(*dgxa100.Device)
		gpu.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) {
			var pci nvml.PciInfo
			for i, c := range []byte("00000001:4" + fmt.Sprint(gpu.Index) + ":00.0") {
				pci.BusId[i] = int8(c)
			}
			return pci, nvml.SUCCESS
		}
	}
	return server
}

func counted(found resources) string {
	var parts []string
	for _, name := range found.names() {
		parts = append(parts, fmt.Sprintf("%s=%d", name, len(found[name])))
	}
	return strings.Join(parts, " ")
}

func TestResourceNamesFollowTheMigStrategy(t *testing.T) {
	type layout map[int][]string
	slices := []string{"1g.5gb", "1g.5gb", "1g.5gb"}
	for name, c := range map[string]struct {
		strategy string
		layout   layout
		want     string
		wantErr  string
	}{
		"none, no MIG":     {migNone, nil, "nvidia.com/gpu=2", ""},
		"none ignores MIG": {migNone, layout{0: slices}, "nvidia.com/gpu=2", ""},
		"single, no MIG":   {migSingle, nil, "nvidia.com/gpu=2", ""},
		"single, uniform":  {migSingle, layout{0: slices, 1: slices}, "nvidia.com/gpu=6", ""},
		"single, half":     {migSingle, layout{0: slices}, "", "want all GPUs in MIG mode or none"},
		"single, two profiles": {migSingle, layout{0: slices, 1: {"3g.20gb"}}, "",
			"want one profile"},
		"mixed": {migMixed, layout{0: {"3g.20gb", "1g.5gb+me", "1g.5gb"}},
			"nvidia.com/gpu=1 nvidia.com/mig-1g.5gb=1 nvidia.com/mig-1g.5gb.me=1 nvidia.com/mig-3g.20gb=1", ""},
		"mixed, empty MIG GPU": {migMixed, layout{1: {}}, "", "have 0; create instances"},
	} {
		t.Run(name, func(t *testing.T) {
			server := a100s(2)
			for index, profiles := range c.layout {
				partition(server, index, profiles...)
			}
			d := discovery{lib: server, strategy: c.strategy, sysfs: t.TempDir(), procfs: t.TempDir()}
			found, err := d.find()
			if c.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantErr) {
					t.Fatalf("want an error with %q, have %v", c.wantErr, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if have := counted(found); have != c.want {
				t.Errorf("want %s, have %s", c.want, have)
			}
		})
	}
}

func TestDeviceFilesAndTopology(t *testing.T) {
	server := a100s(2)
	partition(server, 1, "1g.5gb")
	sysfs, procfs := t.TempDir(), t.TempDir()
	write(t, filepath.Join(sysfs, "bus/pci/devices/0001:41:00.0/numa_node"), "1\n")
	write(t, filepath.Join(procfs, "driver/nvidia-caps/mig-minors"),
		"config 1\ngpu1/gi7/access 30\ngpu1/gi7/ci0/access 31\n")
	d := discovery{lib: server, strategy: migMixed, sysfs: sysfs, procfs: procfs}
	found, err := d.find()
	if err != nil {
		t.Fatal(err)
	}
	slice := found["nvidia.com/mig-1g.5gb"][0]
	want := "[/dev/nvidia1 /dev/nvidia-caps/nvidia-cap30 /dev/nvidia-caps/nvidia-cap31]"
	if have := fmt.Sprint(slice.paths); have != want {
		t.Errorf("want %s, have %s", want, have)
	}
	if slice.numa != 1 || found[resourceGPU][0].numa != -1 {
		t.Errorf("want NUMA nodes 1 and unknown, have %d and %d", slice.numa, found[resourceGPU][0].numa)
	}
	if slice.index != "1:0" {
		t.Errorf("want index 1:0, have %s", slice.index)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
