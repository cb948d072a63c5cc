/* SPDX-License-Identifier: Apache-2.0 */
/* Events: an Xid that a test writes to the file below as "<GPU index> <Xid>" is delivered once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "state.h"

#define XID	"/run/rackwright-sim/xid"
#define POLL_MS 100

struct event_set {
	unsigned long long types;
};

API nvmlReturn nvmlEventSetCreate(nvmlEventSet *set)
{
	nvmlReturn rc = enter();

	if (rc)
		return rc;
	if (!set)
		return leave(NVML_INVALID_ARGUMENT);
	*set = calloc(1, sizeof(**set));
	return leave(*set ? NVML_SUCCESS : NVML_MEMORY);
}

API nvmlReturn nvmlEventSetFree(nvmlEventSet set)
{
	free(set);
	return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetSupportedEventTypes(nvmlDevice device, unsigned long long *types)
{
	nvmlReturn rc = enter();
	struct view v;

	if (rc)
		return rc;
	rc = types ? view_device(device, &v) : NVML_INVALID_ARGUMENT;
	if (!rc)
		*types = EVENT_XID | EVENT_DOUBLE_BIT_ECC | EVENT_SINGLE_BIT_ECC;
	return leave(rc);
}

API nvmlReturn nvmlDeviceRegisterEvents(nvmlDevice device, unsigned long long types,
					nvmlEventSet set)
{
	nvmlReturn rc = enter();
	struct view v;

	if (rc)
		return rc;
	rc = set ? view_device(device, &v) : NVML_INVALID_ARGUMENT;
	if (!rc)
		set->types |= types;
	return leave(rc);
}

static bool take_xid(struct nvml_event *event)
{
	unsigned int index, xid;
	FILE *file = fopen(XID, "re");
	bool found;

	if (!file)
		return false;
	found = fscanf(file, "%u %u", &index, &xid) == 2;
	fclose(file);
	if (!found || !gpu_at(index) || unlink(XID))
		return false;
	*event = (struct nvml_event){ .device = gpu_at(index),
				      .type = EVENT_XID,
				      .data = xid,
				      .gpu_instance = ~0u,
				      .compute_instance = ~0u };
	return true;
}

API nvmlReturn nvmlEventSetWait_v2(nvmlEventSet set, struct nvml_event *event,
				   unsigned int timeout_ms)
{
	for (unsigned int waited = 0;; waited += POLL_MS) {
		nvmlReturn rc = enter();
		bool found;

		if (rc)
			return rc;
		if (!set || !event)
			return leave(NVML_INVALID_ARGUMENT);
		found = set->types & EVENT_XID && take_xid(event);
		leave(NVML_SUCCESS);
		if (found)
			return NVML_SUCCESS;
		if (waited >= timeout_ms)
			return NVML_TIMEOUT;
		usleep(POLL_MS * 1000);
	}
}

API nvmlReturn nvmlEventSetWait(nvmlEventSet set, struct nvml_event *event, unsigned int timeout_ms)
{
	return nvmlEventSetWait_v2(set, event, timeout_ms);
}
