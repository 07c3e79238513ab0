module event_scheduler #(
    parameter MAX_EVENTS = 16,
    parameter TIMESTAMP_WIDTH = 16,
    parameter PRIORITY_WIDTH = 4,
    parameter TIME_INCREMENT = 10
) (
    input  logic                       clk,
    input  logic                       reset,
    input  logic                       add_event,
    input  logic                       cancel_event,
    input  logic [3:0]                 event_id,
    input  logic [TIMESTAMP_WIDTH-1:0] timestamp,
    input  logic [PRIORITY_WIDTH-1:0]  priority_in,
    output logic                       event_triggered,
    output logic [3:0]                 triggered_event_id,
    output logic                       error,
    output logic [TIMESTAMP_WIDTH-1:0] current_time
);
    logic [TIMESTAMP_WIDTH-1:0] due [0:MAX_EVENTS-1];
    logic [PRIORITY_WIDTH-1:0]  rank [0:MAX_EVENTS-1];
    logic [MAX_EVENTS-1:0]      valid;
    logic [3:0]                 best;
    logic                       found;
    integer                     i;

    always @(posedge clk or posedge reset)
        if (reset) begin
            valid = 0;
            current_time <= 0;
            event_triggered <= 0;
            triggered_event_id <= 0;
            error <= 0;
        end else begin
            error <= 0;
            if (add_event) begin
                if (valid[event_id]) error <= 1;
                else begin
                    valid[event_id] = 1;
                    due[event_id] = timestamp;
                    rank[event_id] = priority_in;
                end
            end
            if (cancel_event) begin
                if (valid[event_id]) valid[event_id] = 0;
                else error <= 1;
            end
            found = 0;
            best = 0;
            for (i = 0; i < MAX_EVENTS; i = i + 1)
                if (valid[i] && due[i] <= current_time + TIME_INCREMENT && (!found || rank[i] > rank[best])) begin
                    found = 1;
                    best = i[3:0];
                end
            if (found) valid[best] = 0;
            event_triggered <= found;
            if (found) triggered_event_id <= best;
            current_time <= current_time + TIME_INCREMENT;
        end
endmodule
