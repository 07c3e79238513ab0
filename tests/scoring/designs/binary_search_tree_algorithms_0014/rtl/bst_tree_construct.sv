module bst_tree_construct #(
    parameter DATA_WIDTH = 16,
    parameter ARRAY_SIZE = 5,
    localparam PTR = $clog2(ARRAY_SIZE) + 1
) (
    input  logic                             clk,
    input  logic                             reset,
    input  logic                             start,
    input  logic [ARRAY_SIZE*DATA_WIDTH-1:0] data_in,
    output logic [ARRAY_SIZE*DATA_WIDTH-1:0] keys,
    output logic [ARRAY_SIZE*PTR-1:0]        left_child,
    output logic [ARRAY_SIZE*PTR-1:0]        right_child,
    output logic [PTR-1:0]                   root,
    output logic                             done,
    output logic                             invalid
);
    localparam [PTR-1:0] NIL = '1;
    localparam [DATA_WIDTH-1:0] NO_KEY = '1;
    localparam [2:0] IDLE = 0, INIT = 1, INSERT = 2, TRAVERSE = 3, COMPLETE = 4;

    logic [ARRAY_SIZE-1:0][DATA_WIDTH-1:0] data, key;
    logic [ARRAY_SIZE-1:0][PTR-1:0]        left, right;
    logic [PTR-1:0]                        count, here;
    logic [2:0]                            state;
    logic                                  usable;

    assign keys        = key;
    assign left_child  = left;
    assign right_child = right;

    always_comb begin
        usable = 1'b1;
        for (int i = 0; i < ARRAY_SIZE; i++) usable = usable && data[i] != NO_KEY;
    end

    // The word that is to be inserted gets the node of its own number, so that the tree lies in the order of the input.
    wire [DATA_WIDTH-1:0] word = data[count];
    wire                  less = word < key[here];
    wire [PTR-1:0]        below = less ? left[here] : right[here];

    always_ff @(posedge clk or posedge reset)
        if (reset) begin
            state <= IDLE;
            {done, invalid} <= '0;
            {key, left, right, root} <= '1;
        end else
            case (state)
                // The last tree stays, for those who work on it.
                IDLE: begin
                    {done, invalid} <= '0;
                    if (start) begin
                        data <= data_in;
                        count <= '0;
                        {key, left, right, root} <= '1;
                        state <= INIT;
                    end
                end

                // Unknown data are not usable, either.
                INIT:
                    if (usable) state <= count == ARRAY_SIZE ? COMPLETE : INSERT;
                    else begin
                        invalid <= 1'b1;
                        state <= IDLE;
                    end

                INSERT: begin
                    here <= root;
                    if (root == NIL) begin
                        root <= count;
                        key[count] <= word;
                        count <= count + 1'b1;
                        state <= INIT;
                    end else state <= TRAVERSE;
                end

                TRAVERSE: begin
                    here <= below;
                    if (below == NIL) begin
                        if (less) left[here] <= count;
                        else right[here] <= count;
                        key[count] <= word;
                        count <= count + 1'b1;
                        state <= INIT;
                    end
                end

                COMPLETE: begin
                    done <= 1'b1;
                    state <= IDLE;
                end

                default: state <= IDLE;
            endcase
endmodule
