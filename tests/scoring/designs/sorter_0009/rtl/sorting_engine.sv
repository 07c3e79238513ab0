// Merge sort of eight elements in 17 clocks: pairs, then two merges of four one after the other, then one of eight. The
// pairs are sorted while the elements are loaded, and each merge writes its last element as the next one begins.
module sorting_engine #(parameter WIDTH = 8) (
    input                    clk,
    input                    rst,
    input                    start,
    input      [8*WIDTH-1:0] in_data,
    output reg               done,
    output reg [8*WIDTH-1:0] out_data
);
    localparam IDLE = 0, MERGE_LOW = 1, MERGE_HIGH = 2, MERGE_ALL = 3;

    reg [1:0] state;
    reg [WIDTH-1:0] pairs [0:7];
    reg [WIDTH-1:0] fours [0:7];
    reg [WIDTH-1:0] eight [0:6];
    reg [2:0] count, left, right;
    integer i;

    function [WIDTH-1:0] element(input integer n);
        element = in_data[n*WIDTH +: WIDTH];
    endfunction

    // The two lists of a merge start at `base` and have `half` elements each.
    wire [2:0] base = state == MERGE_HIGH ? 4 : 0;
    wire [2:0] half = state == MERGE_ALL ? 4 : 2;
    wire [WIDTH-1:0] a = state == MERGE_ALL ? fours[left] : pairs[base + left];
    wire [WIDTH-1:0] b = state == MERGE_ALL ? fours[4 + right] : pairs[base + 2 + right];
    wire take_left = right == half || (left != half && a <= b);
    wire [WIDTH-1:0] next = take_left ? a : b;
    wire last = count == 2 * half - 1;

    always @(posedge clk or posedge rst)
        if (rst) begin
            state <= IDLE;
            done <= 0;
            out_data <= 0;
            {count, left, right} <= 0;
        end else begin
            done <= 0;
            case (state)
                IDLE: if (start) begin
                    for (i = 0; i < 8; i = i + 2) begin
                        pairs[i] <= element(i) <= element(i + 1) ? element(i) : element(i + 1);
                        pairs[i+1] <= element(i) <= element(i + 1) ? element(i + 1) : element(i);
                    end
                    state <= MERGE_LOW;
                end
                default: begin
                    {count, left, right} <= last ? 0 : {count + 3'd1, left + {2'd0, take_left}, right + {2'd0, !take_left}};
                    if (last) state <= state == MERGE_ALL ? IDLE : state + 1;
                    if (state != MERGE_ALL) fours[base + count] <= next;
                    else if (!last) eight[count] <= next;
                    else begin
                        for (i = 0; i < 7; i = i + 1) out_data[i*WIDTH +: WIDTH] <= eight[i];
                        out_data[7*WIDTH +: WIDTH] <= next;
                        done <= 1;
                    end
                end
            endcase
        end
endmodule
