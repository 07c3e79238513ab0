module binary_search_tree_sort #(
    parameter DATA_WIDTH = 16,
    parameter ARRAY_SIZE = 5,
    localparam PTR = $clog2(ARRAY_SIZE) + 1
) (
    input  logic                             clk,
    input  logic                             reset,
    input  logic                             start,
    input  logic [ARRAY_SIZE*DATA_WIDTH-1:0] keys,
    input  logic [ARRAY_SIZE*PTR-1:0]        left_child,
    input  logic [ARRAY_SIZE*PTR-1:0]        right_child,
    input  logic [PTR-1:0]                   root,
    output logic [ARRAY_SIZE*DATA_WIDTH-1:0] sorted_out,
    output logic                             done,
    output logic                             invalid
);
    localparam [PTR-1:0] NIL = '1;
    localparam [DATA_WIDTH-1:0] NO_KEY = '1;
    localparam [1:0] S_IDLE = 0, S_TRAVERSE_LEFT = 1, S_PROCESS_NODE = 2, S_TRAVERSE_RIGHT = 3;

    logic [ARRAY_SIZE-1:0][DATA_WIDTH-1:0] sorted;
    logic [PTR-1:0]                        stack [0:ARRAY_SIZE-1];
    logic [PTR-1:0]                        sp, here, count;
    logic [1:0]                            state;

    wire [PTR-1:0] top = stack[sp-1'b1];

    assign sorted_out = sorted;

    always_ff @(posedge clk or posedge reset)
        if (reset) begin
            state <= S_IDLE;
            {done, invalid} <= '0;
            sorted <= '1;
        end else
            case (state)
                S_IDLE: begin
                    {done, invalid} <= '0;
                    if (start) begin
                        sorted <= '1;
                        {sp, count} <= '0;
                        here <= root;
                        if (root == NIL || keys[root*DATA_WIDTH+:DATA_WIDTH] == NO_KEY) invalid <= 1'b1;
                        else state <= S_TRAVERSE_LEFT;
                    end
                end

                S_TRAVERSE_LEFT:
                    if (here == NIL) state <= S_PROCESS_NODE;
                    else begin
                        stack[sp] <= here;
                        sp <= sp + 1'b1;
                        here <= left_child[here*PTR+:PTR];
                    end

                S_PROCESS_NODE:
                    if (sp == 0) begin
                        done <= 1'b1;
                        state <= S_IDLE;
                    end else begin
                        sp <= sp - 1'b1;
                        here <= top;
                        sorted[count] <= keys[top*DATA_WIDTH+:DATA_WIDTH];
                        count <= count + 1'b1;
                        state <= S_TRAVERSE_RIGHT;
                    end

                S_TRAVERSE_RIGHT: begin
                    here <= right_child[here*PTR+:PTR];
                    state <= S_TRAVERSE_LEFT;
                end
            endcase
endmodule
